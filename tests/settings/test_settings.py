"""Settings: derived from constructors, coerced, checked, and repeated from JSON."""

import inspect
import json

import pytest

from kaem import Adam, Langevin, Upkeep, UserError
from kaem.models import MODELS
from kaem.settings import PRESETS, Data, Settings, Training, merge, override, read_preset
from kaem.settings.schema import REQUIRED, resolved
from kaem.settings.settings import PARTS, allowed
from support.training import TINY


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("prior.latent=3", "did you mean prior.latents"),
        ("training.steps=many", "a whole number"),
        ("training.steps=0", "positive"),
        ("model.noise=-1", "positive"),
        ("prior.domain=[1]", "a list such as"),
        ("steps", "section.name=value"),
        ("nothing.at=1", "there is no section 'nothing'"),
        ("learner.kind=magic", "importance"),
        ("training.checkpoint_every=33", "multiple"),
        ("grid.ratio=0", "ratio"),
        ("optimiser.betas=[2, 3]", "less than 1"),
        ("optimiser.betas=[0.9, -1]", "less than 1"),
        ("optimiser.warmup=100000000000", "less than 2"),
        ("training.steps=100000000000", "below 2"),
        (f"training.steps=1{'0' * 399}", "400 digits"),
    ],
)
def test_bad_settings_are_named(assignment, message):
    with pytest.raises(UserError, match=message):
        Settings.from_dict(override(TINY, assignment)).model((28, 28, 1))


def test_how_functions_begin_can_be_set_of_prior_and_generator():
    for section in ("prior", "generator"):
        values = override(TINY, f"{section}.amplitude=0.3")
        assert Settings.from_dict(values).arguments[section]["amplitude"] == 0.3


def test_settings_survive_json():
    settings = Settings.from_dict(override(read_preset("digits-kan"), "prior.domain=[-2, 2]"))
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    for name, value in (("activation", None), ("reference", "none")):
        changed = Settings.from_dict(override(TINY, f"prior.{name}=none"))
        assert changed.arguments["prior"][name] == value


def test_errors_are_user_errors():
    with pytest.raises(UserError, match=r"learner\.kind"):
        Settings.from_dict({"learner": {"kind": "gibbs"}})


# Sections are derived from constructors: no default stands twice.


def defaults(constructor):
    parameters = inspect.signature(constructor).parameters
    return {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}


@pytest.mark.parametrize("name", PRESETS)
def test_every_section_of_every_preset_round_trips(name):
    settings = Settings.from_dict(read_preset(name))
    values = json.loads(json.dumps(settings.to_dict()))
    again = Settings.from_dict(values)
    assert again == settings
    for section, entries in again.to_dict().items():
        assert entries == settings.to_dict()[section], section
    assert Settings.from_dict(values, recorded=True) == settings
    assert again.learner() == settings.learner()


@pytest.mark.parametrize("kind", MODELS)
def test_every_default_is_that_of_its_constructor(kind):
    usual = MODELS[kind].usual
    registries = {"model": MODELS, **PARTS}
    for section in ("model", *usual):
        for name, constructor in registries[section].items():
            if section == "model" and name != kind:
                continue
            own = defaults(constructor)
            known = allowed(section, name)
            required = {n: _some(f.hint) for n, f in known.items() if f.default is REQUIRED}
            found = resolved(known, required, section)
            for setting, value in found.items():
                if setting in own:
                    assert value == own[setting], (section, name, setting)
                else:
                    assert setting in required or setting in ("start", "frozen"), setting
    settings = Settings.from_dict({"model": {"kind": kind}} | _least(usual))
    for section, cls in (("data", Data), ("training", Training), ("optimiser", Adam)):
        assert getattr(settings, section) == cls()
    assert settings.upkeep == Upkeep()


def _some(hint):
    return 3 if hint is int else (8, 8)


def _least(usual):
    """What the constructor of a model's usual prior has no default for."""
    if "prior" not in usual:
        return {}
    known = allowed("prior", usual["prior"])
    return {"prior": {n: _some(f.hint) for n, f in known.items() if f.default is REQUIRED}}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("prior.latnets=3", "there is no setting prior.latnets; did you mean prior.latents?"),
        ("learner.sampels=3", "did you mean learner.samples?"),
        ("generator.deepth=3", "did you mean generator.depth?"),
        ("model.nose=3", "did you mean model.noise?"),
        ("upkeep.tolerence=3", "did you mean upkeep.tolerance?"),
        ("grid.intervall=3", "did you mean grid.interval?"),
        ("optimiser.prior_rat=3", "did you mean optimiser.prior_rate?"),
        ("data.limits=3", "did you mean data.limit?"),
        ("training.step=3", "did you mean training.steps?"),
        ("learner.zzz=3", "known: samples"),
    ],
)
def test_names_that_are_nearly_right_are_told(assignment, message):
    with pytest.raises(UserError) as refused:
        Settings.from_dict(override(TINY, assignment))
    assert message in str(refused.value)


def test_another_kind_drops_what_it_does_not_have():
    values = read_preset("svhn-paper-thermo")
    values = override(values, "learner.kind=langevin")
    settings = Settings.from_dict(values)
    assert settings.learner() == Langevin(steps=40, step_size=0.01, sampler="ula")
    assert "temperatures" not in settings.arguments["learner"]
    values = override(override(values, "generator.kind=kan"), "generator.depth=1")
    settings = Settings.from_dict(values)
    assert "widths" not in settings.arguments["generator"]
    assert settings.arguments["generator"]["depth"] == 1
    values = override(values, "prior.kind=univariate")
    settings = Settings.from_dict(values)
    assert settings.arguments["prior"]["latents"] == 40
    assert "proportions" not in settings.arguments["prior"]
    with pytest.raises(UserError, match=r"there is no setting prior\.proportions"):
        Settings.from_dict(override(values, "prior.proportions=learned"))


@pytest.mark.parametrize(
    ("preset", "assignment", "message"),
    [
        ("vae-digits", "prior.kind=univariate", "must be one of normal, got 'univariate'"),
        ("neural-ebm-digits", "prior.kind=normal", "must be one of neural, got 'normal'"),
        ("digits-kan", "prior.kind=neural", "must be one of univariate, mixture, got 'neural'"),
    ],
)
def test_a_model_has_parts_that_it_can_use(preset, assignment, message):
    values = merge(override(read_preset(preset), assignment), {"prior": {"coordinates": 5}})
    if "univariate" in assignment:
        values = merge(values, {"prior": {"latents": 2}})
    with pytest.raises(UserError) as refused:
        Settings.from_dict(values)
    assert message in str(refused.value)


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(UserError, match=r"model\.noise must be a finite number"):
        Settings.from_dict({"model": {"noise": 10**400}})
