"""Training in memory: optimisers, frozen parts, callbacks and validation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kaem
from kaem import KAEM, KAN, ImportanceSampling, Langevin, UnivariatePrior, UserError, fit
from kaem.training import Adam, Grid, Upkeep
from support.models import bent, digits, own, small
from support.training import images, same

MODEL, KEY = small(), jax.random.key(0)
STILL = Upkeep(grid=Grid(prior=False, generator=False))


def test_any_optimiser_of_optax_fits():
    """One step of plain gradient descent from the same gradient, at two rates."""
    x = digits()
    moves = []
    for rate in (1e-5, 2e-5):
        trained, _ = kaem.fit(
            MODEL, x, key=KEY, optimiser=optax.sgd(rate), steps=1, batch_size=64, log_every=1,
            upkeep=STILL,
        )  # fmt: skip
        name = lambda m: m.generator.layers[1].base_weight  # noqa: E731
        moves.append(np.asarray(name(trained) - name(MODEL), float))
    assert np.abs(moves[0]).max() > 0
    np.testing.assert_allclose(moves[1], 2 * moves[0], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau()),
        optax.MultiSteps(optax.adam(1e-3), 2),
    ],
    ids=["plateau", "multi-steps"],
)
def test_optimisers_that_ask_for_more_fit_too(optimiser):
    x = np.random.default_rng(0).normal(1.0, 0.1, (32, 4, 2))
    _, history = kaem.fit(
        own(), x, key=KEY, optimiser=optimiser, steps=8, batch_size=16, log_every=4
    )
    assert history[-1]["loss"] < history[0]["loss"]


def test_what_is_no_optimiser_is_refused():
    with pytest.raises(ValueError, match=r"optax\.adam"):
        kaem.fit(MODEL, digits(), key=KEY, optimiser="adam")


def test_a_frozen_prior_is_frozen_under_any_optimiser():
    adamw = optax.adamw(1e-2, weight_decay=0.1)
    trained, _ = kaem.fit(
        MODEL,
        digits(),
        key=KEY,
        optimiser=adamw,
        steps=3,
        batch_size=32,
        log_every=3,
        freeze=lambda model: model.prior,
    )
    for a, b in zip(
        jax.tree.leaves(trained.prior.energies), jax.tree.leaves(MODEL.prior.energies), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_callbacks_see_the_model_and_may_stop_and_validation_is_not_learned_from():
    x, seen = digits(96), []

    def callback(record, model):
        seen.append((record["step"], model))
        return record["step"] == 20

    options = {"key": KEY, "steps": 100, "batch_size": 32, "log_every": 10, "callback": callback}
    plain, _ = kaem.fit(MODEL, x, **options)
    seen.clear()
    trained, history = kaem.fit(MODEL, x, validation=255 - digits(70), **options)
    assert [step for step, _ in seen] == [10, 20] == [h["step"] for h in history]
    samples = [model.sample(jax.random.key(0), 1) for _, model in seen]  # buffers are their own
    assert not np.array_equal(*samples)
    assert history[-1]["validation_loss"] > history[-1]["loss"] + 1  # negatives are not digits
    for a, b in zip(
        jax.tree.leaves(eqx.filter(trained, eqx.is_array)),
        jax.tree.leaves(eqx.filter(plain, eqx.is_array)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(UserError, match="validation"):
        kaem.fit(MODEL, x, validation=x[:, :2], **options)


def test_validation_has_persistent_chains_of_its_own():
    x = np.random.default_rng(0).normal(1.0, 0.1, (40, 4, 2))
    _, history = kaem.fit(
        own(),
        x[:32],
        validation=x[32:],
        key=KEY,
        learner=Langevin(steps=2, persistent=True),
        steps=20,
        batch_size=16,
        log_every=10,
    )
    gaps = [abs(h["validation_log_likelihood"] - h["log_likelihood"]) for h in history]
    assert history[-1]["validation_log_likelihood"] > history[0]["validation_log_likelihood"]
    assert gaps[-1] < 20


@pytest.mark.slow
def test_training_explains_the_data_better():
    """Over 300 updates the marginal likelihood of position-only images rises far above noise."""
    a, b = jax.random.split(jax.random.key(0))
    model = KAEM(UnivariatePrior(1, key=a), KAN(3, (28, 28, 1), key=b), noise=0.2)
    before = jax.tree.map(np.array, eqx.filter(model, eqx.is_array))
    trained, history = fit(
        model,
        images(),
        learner=ImportanceSampling(64),
        key=KEY,
        steps=300,
        batch_size=50,
        optimiser=Adam(prior_rate=1e-2, generator_rate=1e-2),
    )
    assert history[-1]["log_marginal"] > history[0]["log_marginal"] + 100
    assert [r["step"] for r in history] == list(range(50, 301, 50))
    assert trained.prior.cached is not None
    # The caller's model is untouched by the donation of buffers.
    assert same(before, eqx.filter(model, eqx.is_array))
    # What it generates is blobs: bright where the data is bright, dark where it is dark.
    mean = np.asarray(trained.sample(jax.random.key(1), 200)).mean(axis=0)[..., 0]
    real = images().mean(axis=0)[..., 0] / 255
    assert np.corrcoef(mean.ravel(), real.ravel())[0, 1] > 0.9


def test_fit_checks_the_data_against_the_model_it_was_given():
    a, b = jax.random.split(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    prior = UnivariatePrior(1, key=a, cells=16)
    with pytest.raises(UserError, match=r"makes values in \[0, 1\]"):
        fit(KAEM(prior, KAN(3, (3,), key=b)), x, key=KEY, steps=2, batch_size=8)
    with pytest.raises(UserError, match=r"shape \(4,\)"):
        fit(KAEM(prior, KAN(3, (4,), key=b, output="identity")), x, key=KEY, steps=2, batch_size=8)
    model = KAEM(prior, KAN(3, (3,), key=b, output="identity"), noise=0.5)
    _, history = fit(model, x, key=KEY, steps=2, batch_size=8, log_every=1)
    assert len(history) == 2


def test_fitting_a_fitted_model_goes_on_from_it():
    """Grids may move a new model as they like, and what has learned by 1 % of what it makes."""
    still = {"key": KEY, "steps": 1, "log_every": 1, "batch_size": 16, "optimiser": Adam(0.0, 0.0)}
    x, model = (np.zeros((16, 6, 6, 1), np.uint8), bent())
    u = jax.random.uniform(jax.random.key(1), (200, *model.prior.shape))
    before = np.asarray(model.prepared().generate(u))
    seen = []
    first, _ = kaem.fit(model, x, callback=lambda record, model: seen.append(model), **still)
    moved = np.asarray(first.generate(u))

    def change(start, before):
        after = np.asarray(kaem.fit(start, x, **still)[0].generate(u))
        return float(np.std(after - before) / np.std(before))

    assert float(np.std(moved - before) / np.std(before)) > 0.05
    assert change(model.prepared(), before) < 0.015
    for start in (seen[-1], first.trainable(), first):  # best so far, edited, fitted
        assert change(start, moved) < 0.015


class Brightness(kaem.AbstractLearner):
    """A loss that is known beforehand: the mean of the examples, whatever the model."""

    @property
    def info_names(self):
        return ()

    def objective(self, model, x, key, memory, progress):
        return -jnp.mean(x) + 0 * jnp.sum(model.generator.layers[0].base_weight), ({}, memory)


def test_validation_judges_every_example():
    x = digits(37)
    _, history = kaem.fit(
        MODEL, x[:32], validation=x, learner=Brightness(), key=KEY, steps=1, log_every=1,
        batch_size=16, upkeep=STILL,
    )  # fmt: skip
    np.testing.assert_allclose(history[0]["validation_loss"], x.mean() / 255, rtol=1e-5)


@pytest.mark.parametrize("decay", ["constant", "cosine"])
def test_rates_rise_and_decay_as_said(decay):
    """Against the formulas: linear over the warm-up, then a half cosine to a twentieth."""
    rate = Adam(decay=decay, warmup=10).rate(0.2, 110)
    found = [float(rate(step)) for step in range(111)]
    np.testing.assert_allclose(found[:10], 0.2 * np.arange(1, 11) / 11, rtol=1e-5)
    share = (np.arange(10, 111) - 10) / 100
    cosine = 0.05 + 0.95 * (1 + np.cos(np.pi * share)) / 2
    np.testing.assert_allclose(found[10:], 0.2 * (cosine if decay == "cosine" else 1), rtol=1e-5)
    with pytest.raises(ValueError, match=r"optimiser\.warmup"):
        Adam(warmup=-1)


@pytest.mark.parametrize("freeze", [lambda model: True, lambda model: model.noise, MODEL.prior])
def test_freezing_nothing_is_refused(freeze):
    with pytest.raises(ValueError, match="selects none"):
        kaem.fit(MODEL, digits(), key=KEY, freeze=freeze, steps=1, batch_size=16)
