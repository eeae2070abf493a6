"""Gradients of models as users hold them: loaded, fitted, prepared; against those of nothing kept."""

from operator import attrgetter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem
from kaem import CNN, KAEM, KAN, MixturePrior, UnivariatePrior
from kaem.derived import follow, keep


def univariate():
    a, b = jax.random.split(jax.random.key(0))
    generator = KAN(5, (3, 4, 1), key=b, depth=2)
    return KAEM(UnivariatePrior(2, key=a, cells=64), generator, noise=0.2)


def mixture(**options):
    a, b = jax.random.split(jax.random.key(1))
    prior = MixturePrior(2, key=a, cells=128, proportions="learned", **options)
    return KAEM(prior, CNN(5, (8, 8, 3), key=b, widths=(8,)), noise=0.2)


MODELS = {
    "univariate": univariate,
    "mixture": mixture,
    "components": lambda: mixture(inverse_transform="components"),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request, tmp_path_factory):
    """As `kaem.load` gives it."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    MODELS[request.param]().save(path)
    return kaem.load(path)


def losses(model):
    """What a researcher differentiates: a density, an image, samples, a likelihood."""
    z = model.prior.sample(jax.random.key(2), 4)
    u = jax.random.uniform(jax.random.key(3), (4, *model.prior.shape))
    x = jnp.full((4, *model.data_shape), 0.3)
    return {
        "log_prob": lambda m: jnp.sum(m.prior.log_prob(z)),
        "generate": lambda m: jnp.sum(m.generate(u) ** 2),
        "sample": lambda m: jnp.sum(m.sample(jax.random.key(4), 4) ** 2),
        "log_likelihood": lambda m: jnp.sum(m.log_likelihood(x, m.decode(z))),
    }


@pytest.mark.parametrize("name", ["log_prob", "generate", "sample", "log_likelihood"])
def test_a_loaded_model_has_the_gradients_of_its_parameters(model, name):
    loss = losses(model)[name]
    value, gradient = eqx.filter_value_and_grad(loss)(model)
    expected, plain = eqx.filter_value_and_grad(loss)(model.trainable())
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for part in ("prior.energies", "generator"):
        found, wanted = (
            jax.tree.leaves(eqx.filter(attrgetter(part)(g), eqx.is_array))
            for g in (gradient.trainable(), plain)
        )
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * (1 + np.abs(b).max()))
    if name != "log_likelihood":
        assert max(np.abs(g).max() for g in jax.tree.leaves(plain.prior.energies)) > 1e-3


def test_the_gradient_of_a_loaded_density_is_that_of_finite_differences():
    prior = univariate().prior.refined().cache()
    z = prior.sample(jax.random.key(1), 3)
    coefficients = prior.energies.basis.coefficients

    def moved(step):
        new = coefficients.at[0, 1, 10].add(step)
        made = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior.uncache(), new)
        return float(jnp.sum(made.log_prob(z)))

    gradient = eqx.filter_grad(lambda p: jnp.sum(p.log_prob(z)))(prior)
    slope = (moved(0.05) - moved(-0.05)) / 0.1
    np.testing.assert_allclose(gradient.energies.basis.coefficients[0, 1, 10], slope, rtol=5e-3)


def test_a_model_trained_in_ones_own_loop_is_not_stale(model):
    """Values and gradients of the changed model are right; what is drawn from stale tables is NaN."""
    loss = losses(model)["log_prob"]

    @eqx.filter_jit
    def update(model):
        value, gradient = eqx.filter_value_and_grad(loss)(model)
        return value, eqx.apply_updates(model, jax.tree.map(lambda g: 0.01 * g, gradient))

    held, plain = model, model.trainable()
    for _ in range(3):
        value, held = update(held)
        expected, plain = update(plain)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    assert np.isnan(held.sample(jax.random.key(0), 2)).all()
    again = held.prepared()
    np.testing.assert_allclose(
        again.sample(jax.random.key(0), 2),
        plain.prepared().sample(jax.random.key(0), 2),
        atol=1e-4,
    )


def test_rearranged_weights_that_are_stale_are_noticed():
    ready = mixture().prepared()
    z = ready.prior.sample(jax.random.key(0), 2)
    assert np.isfinite(ready.decode(z)).all()
    moved = eqx.tree_at(
        lambda m: m.generator.kernels[0], ready, replace_fn=lambda kernel: kernel + 1e-3
    )
    assert np.isnan(moved.decode(z)).all()


def test_keeping_changes_no_more_than_rounding():
    """Compiled with what uses it, a table may be summed in another order."""
    for make in MODELS.values():
        plain = make()
        ready = plain.prepared(cells=plain.prior.cells)
        key = jax.random.key(5)
        kept, built = ready.prior.sample(key, 50), plain.prior.sample(key, 50)
        np.testing.assert_allclose(kept, built, rtol=0, atol=5e-6)
        assert np.mean(kept == built) > 0.9


def test_an_edit_of_part_of_a_large_array_is_noticed():
    """An ablated channel of a kernel, one coefficient of a prior."""
    a, b = jax.random.split(jax.random.key(0))
    prior = MixturePrior(2, 8, key=a, cells=32, domain=(-4.0, 4.0))
    model = KAEM(prior, CNN(8, (32, 32, 3), key=b), noise=0.3).prepared()
    z = model.prior.sample(jax.random.key(1), 1)
    for channel in (0, 1, 77, 127):
        ablated = eqx.tree_at(
            lambda m: m.generator.kernels[0],
            model,
            replace_fn=lambda kernel, c=channel: kernel.at[..., c].set(0.0),
        )
        assert np.isnan(ablated.decode(z)).all()
    wide = UnivariatePrior(30, 61, key=a, cells=32).cache()
    moved = eqx.tree_at(
        lambda p: p.energies.basis.coefficients, wide, replace_fn=lambda c: c.at[7, 3, 1].add(5.0)
    )
    assert np.isnan(moved.inverse_cdf(jnp.full((61, 30), 0.5))).all()


@pytest.mark.parametrize("cells", [8, 64])
def test_gradients_through_short_tables_are_those_of_long_ones(cells, monkeypatch):
    """Up to 64 cells are found by a chain of selects, more by a search: one function, one gradient."""
    from kaem.priors import inverse_transform

    prior = UnivariatePrior(1, 2, key=jax.random.key(0), cells=cells)
    u = jax.random.uniform(jax.random.key(1), (20, 2, 1))

    def gradients():
        return eqx.filter_grad(lambda p: jnp.sum(jnp.sin(3 * p.uncache().inverse_cdf(u))))(prior)

    chained = gradients()
    monkeypatch.setattr(inverse_transform, "_CHAIN", 0)
    jax.clear_caches()
    searched = gradients()
    for a, b in zip(jax.tree.leaves(chained), jax.tree.leaves(searched), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 31, 32, 64, 4096])
def test_what_changes_all_numbers_alike_is_noticed(size):
    """Signs and exponents are single bits: in a plain weighted sum of bits they could cancel."""
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    kept = keep(jnp.sum, jnp.asarray(x))
    warning = jax.jit(lambda x: follow(jnp.sum, x, kept)[1])
    assert warning(x) == 0
    for other in (-x, 2 * x, x / 4, x[::-1], 0 * x):
        assert np.isnan(warning(other))


def test_an_edit_of_one_weight_of_a_large_kernel_is_noticed():
    a, b = jax.random.split(jax.random.key(0))
    prior = MixturePrior(2, 8, key=a, cells=32, domain=(-4.0, 4.0))
    model = KAEM(prior, CNN(8, (32, 32, 3), key=b), noise=0.3).prepared()
    assert model.generator.kernels[0].size > 2**17
    edited = eqx.tree_at(
        lambda m: m.generator.kernels[0], model, replace_fn=lambda k: k.at[1, 2, 5, 77].add(1e-3)
    )
    assert np.isnan(edited.decode(model.prior.sample(a, 1))).all()
