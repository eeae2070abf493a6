"""Settings as version 0.1 wrote them, and knew them by other names."""

import json
from pathlib import Path

import equinox as eqx
import jax
import pytest

from kaem import UserError
from kaem.cli import main
from kaem.settings import PRESETS, Settings, merge, override, read_preset
from support.training import same

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "v01" / "presets.json").read_text())
# Values that have changed since, wherever a preset of version 0.1 has them.
CHANGED = [("grid", "samples"), ("prior", "cells"), ("prior", "tolerance")]
# What `svhn-fast`, `cifar10-fast` and `celeba-fast` changed of the paper's settings.
FAST = {
    "learner": {"steps": 4, "persistent": True},
    "optimiser": {"prior_rate": 2e-4, "generator_rate": 1e-3, "decay": "cosine"},
    "training": {"steps": 20_000},
}
# The paper's VAEs, before they had the weight of the author's KL.
LIGHT_KL = {"model": {"noise": 0.3}, "learner": {"beta": 0.01}}


def todays(name):
    """Return the settings, in today's presets, of what version 0.1 called `name`."""
    data, _, variant = name.removeprefix("fashion-").partition("-")
    if data in ("svhn", "cifar10", "celeba", "mnist"):
        paper = name.removesuffix(f"-{variant}") + "-paper"
        if variant == "fast":
            return merge(read_preset(paper), FAST)
        return read_preset(f"{paper}-{variant}" if variant else paper)
    if data == "vae" and variant != "digits":
        return merge(read_preset(f"{name}-paper"), LIGHT_KL)
    return read_preset("digits-kan" if name == "quickstart" else name)


@pytest.mark.parametrize("name", RECORDED)
def test_what_version_01_recorded_is_todays_preset(name):
    recorded = RECORDED[name]
    found = Settings.from_dict(recorded, recorded=True)
    values = todays(name)
    for section, setting in CHANGED:
        if section in values or section == "grid":
            values = merge(values, {section: {setting: recorded[section][setting]}})
    if found.kinds.get("prior") not in ("univariate", "mixture"):
        values = merge(todays(name), {"grid": {"samples": recorded["grid"]["samples"]}})
    expected = Settings.from_dict(values)
    assert found.to_dict() == expected.to_dict()
    assert found == expected
    assert found.learner() == expected.learner()
    assert found.plan().optimiser == expected.plan().optimiser


@pytest.mark.parametrize(
    "name", ["quickstart", "vae-digits", "ddpm-digits", "neural-ebm-digits", "svhn-thermo"]
)
def test_it_makes_the_same_objects(name):
    found = Settings.from_dict(RECORDED[name], recorded=True)
    shape = (32, 32, 3) if "svhn" in name else (28, 28, 1)
    old, new = found.model(shape), Settings.from_dict(todays(name)).model(shape)
    assert same(old, new)
    if hasattr(old, "prior") and hasattr(old.prior, "cells"):
        new = eqx.tree_at(lambda m: m.prior, new, new.prior.with_cells(old.prior.cells))
    assert jax.tree.structure(old) == jax.tree.structure(new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["posterior.kind=mala", "posterior.steps=3"], ["learner.kind=langevin", "learner.sampler=mala", "learner.steps=3"]),
        (["posterior.samples=7"], ["learner.samples=7"]),
        (["training.noise=0.7"], ["model.noise=0.7"]),
        (["generator.noise=0.2"], ["model.generator_noise=0.2"]),
        (["prior.tolerance=1e-3"], ["upkeep.tolerance=1e-3"]),
        (["prior.negative_phase=sampled"], ["learner.negative_phase=sampled"]),
    ],
)  # fmt: skip
def test_old_names_are_understood(old, new):
    settings = []
    for assignments in (old, new):
        values = read_preset("digits-kan")
        for assignment in assignments:
            values = override(values, assignment)
        settings.append(Settings.from_dict(values))
    assert settings[0] == settings[1]


@pytest.mark.parametrize(
    ("preset", "old", "new"),
    [
        ("vae-digits", "vae.beta=0.5", "learner.beta=0.5"),
        ("vae-digits", "vae.widths=[4,4]", "encoder.widths=[4,4]"),
        ("neural-ebm-digits", "neural_ebm.steps=7", "prior.steps=7"),
        ("ddpm-digits", "ddpm.timesteps=70", "model.timesteps=70"),
        ("svhn-paper-thermo", "posterior.temperatures=4", "learner.temperatures=4"),
    ],
)
def test_old_names_of_other_models_are_understood(preset, old, new):
    found, expected = (
        Settings.from_dict(override(read_preset(preset), assignment)) for assignment in (old, new)
    )
    assert found == expected


def test_an_old_name_that_never_was_is_told_in_todays_words():
    with pytest.raises(UserError, match=r"there is no setting learner\.tempratures"):
        Settings.from_dict(override(read_preset("svhn-paper-thermo"), "posterior.tempratures=3"))


@pytest.mark.parametrize("order", [1, -1])
def test_an_old_name_and_todays_together_are_refused(order):
    sections = [("training", {"noise": 0.5}), ("model", {"noise": 0.2})][::order]
    with pytest.raises(UserError, match=r"model\.noise is given twice"):
        Settings.from_dict(dict(sections))


GONE = [name for name in RECORDED if name.endswith("-fast")]
RENAMED = [name for name in RECORDED if name.endswith(("-thermo", "-uniform", "-none"))]


@pytest.mark.parametrize("name", [*GONE, *RENAMED])
def test_a_name_that_is_no_more_is_told_what_became_of_it(name, tmp_path, capsys):
    assert main(["train", name, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    data, variant = name.rsplit("-", 1)
    if name in GONE:
        assert f"{name} is gone: `{data}` is what we recommend, `{data}-paper` what" in told
    else:
        assert f"{name} is now {data}-paper-{variant}." in told
        assert f"{data}-paper-{variant}" in PRESETS
    assert f"`kaem train {name} --out RUN --resume`" in told
    assert not (tmp_path / "run").exists()


def test_a_preset_of_ones_own_may_have_such_a_name(monkeypatch):
    monkeypatch.setitem(PRESETS, "svhn-fast", read_preset("digits-kan"))
    assert read_preset("svhn-fast") == read_preset("digits-kan")
