"""Learning with an encoder: what it maximises, what it refuses, and that resuming changes no bit."""

import dataclasses
import shutil
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem
from kaem.learning import Encoded, EvidenceBound, Langevin
from kaem.loading import read
from kaem.models import LatentModel
from kaem.posterior.guess import Normal, bend, straighten
from kaem.priors import NormalPrior
from kaem.settings import Settings, merge
from kaem.training.parameters import named, parameters
from support.chains import coloured
from support.encoders import ENCODED, SPECTRAL

SHAPE = (8, 8, 3)
X = np.asarray(coloured()[:8], np.float32) / 255


def model():
    return Settings.from_dict(ENCODED).model(SHAPE)


@pytest.mark.parametrize("mixing", [True, False])
def test_the_bound_is_the_sum_of_its_terms(mixing):
    """Against log p(x|z) + log p(z) - log q(z|x) of the same draws, term by term from other methods."""
    settings = merge(ENCODED, {"encoder": {"mixing": mixing}})
    own = Settings.from_dict(settings).model(SHAPE)
    keys = jax.random.split(jax.random.key(0), 200)
    values = jax.jit(jax.vmap(lambda k: Encoded().objective(own, jnp.asarray(X), k, {}, 0.5)[0]))(
        keys
    )

    def direct(key):
        guess = own.encoded(jnp.asarray(X))
        z = guess.draw(key)
        noise = jnp.sum((jnp.asarray(X) - own.decode(z)) ** 2, axis=(1, 2, 3)) / (2 * own.noise**2)
        constant = X[0].size / 2 * np.log(2 * np.pi * own.noise**2)
        return jnp.mean(own.prior.log_prob(z) - guess.log_prob(z) - noise - constant)

    other = jax.jit(jax.vmap(direct))(jax.random.split(jax.random.key(1), 200))
    gap = np.mean(values) - np.mean(other)
    error = np.hypot(np.std(values), np.std(other)) / 200**0.5
    assert abs(gap) < 5 * error
    assert np.std(values) < np.std(other)  # the entropy of the normals is exact


@pytest.mark.parametrize("domain", [(-5.0, 5.0), (0.0, 1.0), (0.05, 20.0)])
def test_the_bend_never_leaves_the_domain(domain):
    """Far out, rounding would: the density there, and with it a whole batch's bound, would be nought."""
    lo, hi = (jnp.full(1, end) for end in domain)
    reach = (domain[1] - domain[0]) / 2
    far = np.concatenate([np.linspace(-40, 40, 4001), [-1e30, 1e30]]) * reach + sum(domain) / 2
    z, log_slope = bend(jnp.asarray(far[:, None], jnp.float32), (lo, hi))
    assert (z >= lo).all()
    assert (z <= hi).all()
    assert np.isfinite(log_slope).all()
    inner = z[np.abs(far - sum(domain) / 2) < reach]
    back, _ = bend(straighten(inner, (lo, hi)), (lo, hi))
    np.testing.assert_allclose(back, inner, rtol=1e-5, atol=1e-5 * reach)


def test_an_encoder_begins_with_a_uniform_prior():
    sections = {
        "prior": {"reference": "uniform", "latents": 2},
        "encoder": {"kind": "dense"},
        "learner": {"kind": "encoder"},
    }
    model = Settings.from_dict(sections).model((8, 8, 1))
    x = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), dtype=np.uint8)
    for seed in range(4):
        _, history = kaem.fit(
            model,
            x,
            key=jax.random.key(seed),
            learner=Encoded(),
            steps=4,
            batch_size=32,
            log_every=4,
        )
        assert np.isfinite(history[-1]["elbo"])


def test_refined_latents_teach_the_generator_and_the_bound_the_encoder():
    own, key = model(), jax.random.key(0)
    params, static = eqx.partition(own, eqx.is_inexact_array)

    def gradient(learner):
        value = lambda p: learner.objective(eqx.combine(p, static), jnp.asarray(X), key, {}, 0.5)[0]  # noqa: E731
        return named(jax.grad(value)(params))

    plain, refined = gradient(Encoded()), gradient(Encoded(steps=5, step_size=1e-3))
    for name in plain:
        alike = np.allclose(plain[name], refined[name], rtol=1e-3, atol=1e-5)
        trained = not name.endswith((".grid", ".domain", ".mixing"))
        assert alike == name.startswith(".encoder") or not trained, name


def test_longer_chains_explain_examples_better():
    own = model()
    found = [
        Encoded(steps=steps, step_size=1e-3).objective(
            own, jnp.asarray(X), jax.random.key(0), {}, 0.5
        )
        for steps in (1, 30)
    ]
    short, long = (info["refined_log_likelihood"] for _, (info, _) in found)
    assert long > short


def test_a_killed_run_goes_on_bit_by_bit(tmp_path):
    np.save(tmp_path / "x.npy", coloured())
    training = {
        "steps": 12,
        "batch_size": 16,
        "log_every": 4,
        "checkpoint_every": 4,
        "sample_every": 12,
    }
    changes = merge(
        SPECTRAL, {"training": training, "data": {"limit": None, "size": 8, "channels": 3}}
    )
    whole = kaem.train("svhn", tmp_path / "whole", data=tmp_path / "x.npy", set=changes)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "00000012")
    lines = (tmp_path / "cut" / "history.jsonl").read_text().splitlines()[:2]
    (tmp_path / "cut" / "history.jsonl").write_text("\n".join(lines) + "\n")
    cut = kaem.train("svhn", tmp_path / "cut", data=tmp_path / "x.npy", resume=True)
    files = [(outcome.run.path / "model.safetensors").read_bytes() for outcome in (whole, cut)]
    assert files[0] == files[1]
    assert read(whole.run.path).encoder.mixing is not None
    assert not np.array_equal(read(whole.run.path).lens.transfer, np.ones(11))


def test_alignment_keeps_what_the_model_makes_and_lowers_the_kl():
    own, x = model(), jnp.asarray(coloured(), jnp.float32) / 255
    mixing = jnp.asarray(np.eye(4) + 0.8, jnp.float32)  # latents that all have much in common
    own = eqx.tree_at(lambda m: m.encoder.mixing, own, mixing)
    moved = own.moved(own.alignment(x, jax.random.key(0)))
    np.testing.assert_allclose(moved.reconstruct(x[:20]), own.reconstruct(x[:20]), atol=2e-3)
    before, after = (
        Encoded().objective(m, x, jax.random.key(1), {}, 1.0)[1][0]["kl"] for m in (own, moved)
    )
    assert after < before - 1


@pytest.mark.parametrize("part", ["prior", "generator", "encoder"])
def test_what_is_frozen_stays_bit_by_bit(part):
    """Neither alignment nor the final order of coordinates may turn it."""
    settings = Settings.from_dict(ENCODED)
    model, x = settings.model((8, 8, 3)), coloured()
    trained, _ = kaem.fit(
        model,
        x,
        key=jax.random.key(0),
        learner=Encoded(),
        steps=6,
        batch_size=16,
        upkeep=settings.upkeep,
        freeze=lambda model: getattr(model, part),
    )
    before, after = (named(getattr(m.trainable(), part)) for m in (model, trained))
    for name, leaf in before.items():
        np.testing.assert_array_equal(leaf, after[name], err_msg=name)


@pytest.mark.parametrize("kind", ["kaem", "vae"])
def test_bytes_are_pixels_wherever_examples_go(kind):
    vae = {"model": {"kind": "vae"}, "prior": {"coordinates": 4}, "encoder": {"widths": [4, 4]}}
    sections = vae | {"generator": {"widths": [4]}} if kind == "vae" else SPECTRAL
    model, x = Settings.from_dict(sections).model((8, 8, 3)), coloured()[:12]
    pixels, key = jnp.asarray(x, jnp.float32) / 255, jax.random.key(0)
    assert x.dtype == np.uint8
    drawn = model.decode(model.prior.sample(key, 12))
    for seen, meant in (
        (model.encoded(x).draw(key), model.encoded(pixels).draw(key)),
        (model.log_likelihood(x, drawn), model.log_likelihood(pixels, drawn)),
        (model.log_likelihood_matrix(x, drawn), model.log_likelihood_matrix(pixels, drawn)),
    ):
        np.testing.assert_array_equal(seen, meant)
    if kind == "kaem":
        lenses = [model.focused(some, key).lens.transfer for some in (x, pixels)]
        np.testing.assert_array_equal(*lenses)


def test_the_mixing_is_not_trained_but_moved():
    assert not any("mixing" in name for name in parameters(model()))


def test_other_learners_do_not_leave_an_encoder_behind():
    for learner in (Langevin(steps=2), kaem.ImportanceSampling(samples=8)):
        with pytest.raises(kaem.UserError, match="does not train the encoder"):
            learner.check(model())
        learner.check(model().without_encoder())


def test_each_learner_says_what_it_needs():
    with pytest.raises(kaem.UserError, match="Encoded needs an encoder"):
        Encoded().check(model().without_encoder())
    with pytest.raises(kaem.UserError, match="standard normal"):
        EvidenceBound().check(model())
    with pytest.raises(ValueError, match="at least 0"):
        Encoded(steps=-1)


def test_exports_and_samples_need_no_encoder():
    own = model()
    bare = dataclasses.replace(own, encoder=None)
    key = jax.random.key(3)
    assert np.array_equal(own.prepared().sample(key, 5), bare.prepared().sample(key, 5))


def test_settings_without_an_encoder_say_so():
    values = merge(ENCODED, {"encoder": {"kind": "none"}})
    assert Settings.from_dict(values).model(SHAPE).encoder is None
    assert Settings.from_dict(values).to_dict()["encoder"] == {"kind": "none"}
    with pytest.raises(kaem.UserError, match="must be one of convolutional, dense"):
        Settings.from_dict(
            {"model": {"kind": "vae"}, "prior": {"coordinates": 4}, "encoder": {"kind": "none"}}
        )
    dense = merge(ENCODED, {"encoder": {"kind": "dense", "widths": [7]}})
    assert Settings.from_dict(dense).model(SHAPE).encoder.weights[0].shape == (192, 7)


def test_latents_that_cannot_be_aligned_do_not_end_a_run(monkeypatch):
    def refuse(*_):
        raise ValueError("latents to align must vary")

    monkeypatch.setattr(kaem.KAEM, "alignment", refuse)
    settings = Settings.from_dict(ENCODED)
    _, history = kaem.fit(
        settings.model(SHAPE),
        coloured(),
        key=jax.random.key(0),
        learner=settings.learner(),
        upkeep=settings.upkeep,
        steps=3,
        batch_size=8,
        log_every=3,
    )
    assert history[-1]["notes"] == [
        f"the prior was not aligned at step {step}: latents to align must vary"
        for step in (1, 2, 3)
    ]


def test_fine_tuning_by_chains_leaves_the_encoder_out(tmp_path):
    np.save(tmp_path / "x.npy", coloured())
    training = {
        "steps": 4,
        "batch_size": 16,
        "log_every": 4,
        "checkpoint_every": 4,
        "sample_every": 4,
    }
    changes = merge(
        SPECTRAL, {"training": training, "data": {"limit": None, "size": 8, "channels": 3}}
    )
    kaem.train("svhn", tmp_path / "run", data=tmp_path / "x.npy", set=changes)
    tuned = kaem.train(
        tmp_path / "run", tmp_path / "tuned", finetune="ula", steps=4, set=["learner.steps=2"]
    )
    assert read(tuned.run.path).encoder is None
    assert tuned.run.settings().kinds["encoder"] == "none"


class OwnModel(LatentModel):
    """Whatever prior, explained by normals."""

    prior: Any
    generator: kaem.AbstractGenerator
    layers: kaem.DenseEncoder
    noise: float = 0.3
    generator_noise: float = 0.0

    def usual_learner(self):
        return Encoded()

    def encoded(self, x):
        return Normal(*self.layers(x))


def own_model(prior):
    a, b = jax.random.split(jax.random.key(0))
    layers = kaem.DenseEncoder(SHAPE, 4, key=b, widths=())
    return OwnModel(prior, kaem.CNN(4, SHAPE, key=a, widths=(4,)), layers)


def test_models_of_your_own_learn_by_the_bound_of_their_prior():
    """With a standard normal prior it is that of EvidenceBound, whose divergence is in closed form."""
    own = own_model(NormalPrior(4))
    Encoded().check(own)
    EvidenceBound().check(own)
    keys = jax.random.split(jax.random.key(1), 4000)
    values = jax.vmap(lambda k: Encoded().objective(own, jnp.asarray(X), k, {}, 0.5)[1][0]["kl"])(
        keys
    )
    exact = EvidenceBound().objective(own, jnp.asarray(X), keys[0], {}, 0.5)[1][0]["kl"]
    assert abs(np.mean(values) - exact) < 4.5 * np.std(values) / len(keys) ** 0.5


def test_the_evidence_bound_refuses_priors_that_are_not_standard_normal():
    learned = kaem.MixturePrior(1, 4, key=jax.random.key(0), basis="bspline", domain=(-6.0, 6.0))
    own = own_model(learned)
    Encoded().check(own)
    with pytest.raises(kaem.UserError, match="has a MixturePrior; learn by Encoded"):
        EvidenceBound().check(own)
