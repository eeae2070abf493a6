"""KAEM: its likelihood, its quantiles, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kaem
from kaem import KAEM, KAN, Langevin, UnivariatePrior
from kaem.priors import NormalPrior
from support.models import digits, small

MODEL = small()


def make(basis="rbf", depth=2, output="sigmoid", **kwargs):
    a, b = jax.random.split(jax.random.key(0))
    prior = UnivariatePrior(2, key=a, basis=basis, **kwargs)
    generator = KAN(5, (3, 4, 1), key=b, depth=depth, output=output, basis=basis)
    return KAEM(prior, generator, noise=0.2, generator_noise=0.1)


def test_log_likelihood_matches_scipy():
    model = make()
    x, means = (jax.random.uniform(jax.random.key(i), (n, 3, 4, 1)) for i, n in ((0, 5), (1, 7)))
    matrix = model.log_likelihood_matrix(x, means)
    for b in range(5):
        for s in range(7):
            mean = np.asarray(means[s], np.float64).ravel()
            exact = stats.norm(mean, 0.2).logpdf(np.asarray(x[b]).ravel()).sum()
            np.testing.assert_allclose(matrix[b, s], exact, rtol=1e-5, atol=1e-3)


def test_generate_at_uniforms_is_sample():
    model = make().prepared()
    key = jax.random.key(4)
    u = jax.random.uniform(key, (6, 5, 2))
    np.testing.assert_array_equal(model.generate(u), model.sample(key, 6))
    np.testing.assert_allclose(model.generate(u[0]), model.generate(u)[0], atol=1e-6)
    assert model.generate(u.reshape(2, 3, 5, 2)).shape == (2, 3, 3, 4, 1)


def test_bad_models_are_refused():
    model = make()
    with pytest.raises(ValueError, match="positive"):
        KAEM(model.prior, model.generator, noise=0.0)
    with pytest.raises(ValueError, match="depth"):
        KAN(3, (2,), key=jax.random.key(0), depth=0)
    with pytest.raises(ValueError, match="sigmoid"):
        KAN(3, (2,), key=jax.random.key(0), output="softmax")


def test_latents_and_priors_of_other_shapes_are_refused():
    model = make()
    with pytest.raises(ValueError, match=r"shape \(n, 5, 2\), .* got \(5, 2\); .* z\[None\]"):
        model.decode(model.prior.sample(jax.random.key(0), 1)[0])
    with pytest.raises(ValueError, match=r"shape \(n, 5, 2\), .* got \(3, 4, 2\)\."):
        model.decode(jnp.zeros((3, 4, 2)))
    with pytest.raises(
        ValueError, match=r"shape \(5, 2\), got a UnivariatePrior of shape \(7, 3\)"
    ):
        model.with_prior(UnivariatePrior(3, key=jax.random.key(0)))
    same = model.with_prior(UnivariatePrior(2, key=jax.random.key(7)))
    assert same.prior.cached is not None


def test_priors_that_lack_something_are_refused():
    model = make()

    class Own:
        shape = (5, 2)

        inverse_cdf = None

    with pytest.raises(ValueError, match="Own lacks sample, for_chains, mean_log_prob, lost"):
        KAEM(Own(), model.generator)
    with pytest.raises(ValueError, match="got a NormalPrior, which has no inverse_cdf"):
        KAEM(NormalPrior((5, 2)), model.generator)


def test_bound_methods_can_be_transformed():
    u = jnp.full((3, *MODEL.prior.shape), 0.3)
    np.testing.assert_allclose(jax.jit(MODEL.generate)(u), MODEL.generate(u), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(MODEL.generate)(u), MODEL.generate(u), atol=1e-6)
    slope = jax.grad(lambda u: jnp.sum(MODEL.generate(u)))(u)
    step = jnp.zeros_like(u).at[0, 1, 0].set(1e-2)
    difference = jnp.sum(MODEL.generate(u + step) - MODEL.generate(u - step)) / 2e-2
    np.testing.assert_allclose(slope[0, 1, 0], difference, rtol=0.1)
    z = MODEL.prior.sample(jax.random.key(0), 3)
    for method in (MODEL.decode, MODEL.prior.log_prob, MODEL.prior.cdf, MODEL.prior.score):
        np.testing.assert_allclose(jax.jit(method)(z), method(z), rtol=1e-5, atol=1e-6)
    score = jax.vmap(jax.grad(MODEL.prior.log_prob))(z)
    np.testing.assert_allclose(score, MODEL.prior.score(z), rtol=1e-3, atol=1e-4)
    assert "quantiles" in MODEL.generate.__doc__
    assert KAEM.generate(MODEL, u).shape == (3, 4, 4, 1)


def test_quantiles_and_numbers_of_samples_are_checked():
    with pytest.raises(ValueError, match=r"in \[0, 1\].*1.5"):
        MODEL.generate(jnp.full(MODEL.prior.shape, 1.5))
    with pytest.raises(ValueError, match="nan"):
        MODEL.generate(jnp.full(MODEL.prior.shape, jnp.nan))
    for n in (-1, 0, 2.5, True):
        for thing in (MODEL, MODEL.prior):
            with pytest.raises(ValueError, match="number of samples"):
                thing.sample(jax.random.key(0), n)
    assert MODEL.sample(jax.random.key(0), np.int64(2)).shape == (2, 4, 4, 1)


def test_examples_are_scaled_or_refused():
    x, key = digits(4), jax.random.key(0)
    floats = x / 255.0
    langevin = Langevin(steps=2)
    z = MODEL.prior.sample(key, 4)
    for use in (
        lambda x: langevin.sample(MODEL, x, z, key)[0],
        lambda x: MODEL.reconstruct(x, key, steps=2),
        lambda x: MODEL.posterior(x, key, proposals=8, steps=4),
        lambda x: kaem.log_likelihood(MODEL, x, key=key, samples=64).value,
    ):
        np.testing.assert_allclose(use(x), use(floats), atol=1e-5)
        np.testing.assert_allclose(use(x[..., 0]), use(floats), atol=1e-5)
        with pytest.raises(ValueError, match="divide by 255"):
            use(x.astype(np.float32))
        with pytest.raises(ValueError, match="shape"):
            use(floats[:, :3])
        with pytest.raises(ValueError, match="NaN"):
            use(np.where(floats > 0.5, np.nan, floats))
