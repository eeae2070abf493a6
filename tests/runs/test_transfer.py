"""Priors that move between models, and runs that go on from other runs."""

import json
import shutil

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import integrate

from kaem import KAEM, KAN, ImportanceSampling, UserError, fit, load, load_prior
from kaem.cli import main
from kaem.data import load as load_data
from kaem.loading import read
from kaem.runs.folder import RunFolder
from kaem.settings import Settings, merge
from support.priors import prior_with
from support.training import TINY, images, same

SET = [f"{s}.{k}={json.dumps(v)}" for s, part in TINY.items() for k, v in part.items()]
QUICK = ["--no-report", "--json", *(a for s in SET for a in ("--set", s))]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run trained by Langevin chains."""
    out = tmp_path_factory.mktemp("transfer") / "source"
    chains = ["--set", "learner.kind=langevin", "--set", "learner.steps=3"]
    assert main(["train", "digits-kan", "--out", str(out), *QUICK, *chains]) == 0
    return out


def test_a_prior_saved_alone_is_the_same_density(tmp_path):
    prior = prior_with("rbf", strength=1.5)
    prior.save(tmp_path / "prior.safetensors")
    restored = load_prior(tmp_path / "prior.safetensors")
    assert same(restored.uncache(), prior.uncache())

    def density(z):
        return float(np.exp(restored.log_prob(np.full(prior.shape, z, np.float32))[()]))

    # The product of all coordinates at one z, against quadrature of each energy in float64.
    z = np.linspace(-1.5, 1.5, 4001)
    curves = np.asarray(prior.energies.curves(np.tile(z, (prior.shape[1], 1))), np.float64)
    log_p = curves - z**2 / 2
    log_p -= np.log(integrate.simpson(np.exp(log_p), x=z))[..., None]
    np.testing.assert_allclose(np.log(density(z[2500])), log_p[..., 2500].sum(), atol=1e-3)
    with pytest.raises(UserError, match="prior without a generator"):
        load(tmp_path / "prior.safetensors")


def test_a_frozen_prior_is_kept_to_the_bit_and_its_generator_learns():
    prior = prior_with("rbf", strength=1.0)
    model = KAEM(prior, KAN(prior.shape[0], (28, 28, 1), depth=1, key=jax.random.key(1)), 0.3)
    x = images(64)
    settings = dict(
        key=jax.random.key(0), learner=ImportanceSampling(16), steps=20, batch_size=16, log_every=10
    )
    trained, history = fit(model, x, freeze=lambda model: model.prior, **settings)
    assert same(trained.prior.energies, prior.energies)
    assert same(trained.prior.domain, prior.domain)
    assert history[-1]["log_likelihood"] > history[0]["log_likelihood"]
    free, _ = fit(model, x, **settings)
    assert not same(free.prior.energies, prior.energies)


def test_a_new_generator_starts_on_the_prior_of_a_run(source, tmp_path, monkeypatch):
    original = tmp_path / "original"
    shutil.copytree(source, original)
    out = tmp_path / "new"
    command = ["train", "digits-kan", "--prior-from", str(original), "--freeze-prior"]
    assert main([*command, "--out", str(out), *QUICK]) == 0
    taken, given = load(out), load(source)
    assert same(taken.prior.energies, given.prior.energies)
    assert not same(taken.generator, given.generator)
    assert RunFolder.open(out).settings().arguments["prior"]["frozen"]
    # What it started from is part of the run: it goes on without the original.
    shutil.rmtree(original)
    assert main(["train", "digits-kan", "--out", str(out), "--resume", "--steps", "40", "--no-report"]) == 0  # fmt: skip
    assert same(load(out).prior.energies, given.prior.energies)
    # Trainable: it begins as the given one, and moves.
    assert main(["train", "digits-kan", "--prior-from", str(source), "--out", str(tmp_path / "free"), *QUICK]) == 0  # fmt: skip
    start = read(tmp_path / "free" / "start.safetensors")
    assert same(start.prior.energies, read(source).prior.energies)
    assert not same(load(tmp_path / "free").prior.energies, given.prior.energies)


def test_importance_sampling_goes_on_from_a_langevin_run(source, tmp_path):
    out = tmp_path / "tuned"
    assert main(["train", str(source), "--finetune", "importance", "--steps", "20", "--no-report", "--out", str(out)]) == 0  # fmt: skip
    settings, given = RunFolder.open(out).settings(), RunFolder.open(source).settings()
    assert settings.kinds["learner"] == "importance"
    assert settings.training.steps == 20
    assert settings.arguments["prior"] == given.arguments["prior"]
    assert same(read(out / "start.safetensors"), read(source))
    # It begins where the source ended, not anew.
    x = load_data("mnist5k")[:64].astype(np.float32) / 255
    objective = eqx.filter_jit(ImportanceSampling(16).expected_log_joint)
    untrained, langevin, tuned = (
        float(objective(model, x, jax.random.key(0))[1].log_likelihood)
        for model in (given.model((28, 28, 1)), read(source), read(out))
    )
    assert untrained < langevin < tuned
    first = RunFolder.open(out).history()[0]
    assert first["ess"] >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits-kan", "--finetune", "importance"], "got the preset"),
        (["SOURCE"], "is a run, not data"),
        (["digits-kan", "--prior-from", "nowhere"], "no model at"),
        (["vae-digits", "--prior-from", "SOURCE"], "only trained anew"),
        (["digits-kan", "--prior-from", "SOURCE", "--set", "prior.latents=3"], "keeps its form"),
        (["digits-kan", "--out", "SOURCE", "--resume", "--freeze-prior"], "its own settings"),
    ],
)
def test_wrong_combinations_are_explained(source, tmp_path, capsys, arguments, message):
    arguments = [a.replace("SOURCE", str(source)) for a in arguments]
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "x")]
    assert main(["train", *arguments, *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_start_of_another_shape_or_kind_is_refused(source):
    settings = merge(TINY, {"model": {"start": str(source)}})
    with pytest.raises(UserError, match="makes data of shape"):
        Settings.from_dict(settings).model((14, 14, 1))
    with pytest.raises(UserError, match="leave one of them out"):
        Settings.from_dict(merge(settings, {"prior": {"start": str(source)}}))
