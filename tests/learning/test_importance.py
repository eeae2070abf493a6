"""Importance sampling: exact expectations, known posteriors, honest gradients."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import KAEM, KAN, ImportanceSampling, UnivariatePrior
from kaem.learning.importance import ImportanceInfo
from kaem.posterior import RESAMPLERS


def linear_gaussian(sigma=0.5):
    """x = 2 (z1 + z2) + noise with z ~ N(0, 1) twice: the posterior of s = z1 + z2 is Gaussian."""
    prior = UnivariatePrior(
        2, 1, key=jax.random.key(0), domain=(-8.0, 8.0), activation=None, cells=512
    )
    prior = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, jnp.zeros((1, 2, 21)))
    generator = KAN(
        1, (1,), key=jax.random.key(0), depth=1, output="identity", activation="identity"
    )
    generator = eqx.tree_at(
        lambda g: (g.layers[0].base_weight, g.layers[0].basis.coefficients),
        generator,
        (jnp.full((1, 1), 2.0), jnp.zeros((1, 1, 21))),
    )
    return KAEM(prior, generator, noise=sigma)


@pytest.mark.parametrize("scheme", list(RESAMPLERS))
def test_posterior_expectations_of_a_linear_gaussian_model(scheme):
    """E[z1 + z2 | x], known in closed form, within 4.5 Monte Carlo standard errors."""
    model, x = linear_gaussian(), jnp.array([[1.5], [-2.0]])
    posterior = ImportanceSampling(4000, 1.0, scheme)
    exact = 2 * 2 * np.asarray(x[:, 0]) / (4 * 2 + 0.25)

    def estimate(key):
        k1, k2 = jax.random.split(key)
        z = model.prior.sample(k1, posterior.samples)
        w, _, _ = posterior.weights(model.log_likelihood_matrix(x, model.decode(z)), k2)
        return w @ jnp.sum(z, axis=(1, 2))

    estimates = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(3), 40)))
    error = estimates.std(axis=0, ddof=1) / np.sqrt(40)
    assert (np.abs(estimates.mean(axis=0) - exact) < 4.5 * error + 1e-3).all()


def test_log_marginal_of_a_linear_gaussian_model():
    model, x = linear_gaussian(), jnp.array([[1.5], [-2.0], [0.3]])
    learner = ImportanceSampling(100_000, 0.0, "none")
    _, info = eqx.filter_jit(learner.expected_log_joint)(model, x, jax.random.key(0))
    exact = stats.norm(0, np.sqrt(8.25)).logpdf(np.asarray(x[:, 0])).mean()
    np.testing.assert_allclose(info.log_marginal, exact, atol=0.02)


def small_model(seed=0, **kwargs):
    prior_key, generator_key = jax.random.split(jax.random.key(seed))
    prior = UnivariatePrior(2, key=prior_key, cells=64, **kwargs)
    return KAEM(prior, KAN(5, (4, 4, 1), key=generator_key, depth=2), noise=0.3)


@eqx.filter_jit
def gradient(posterior, model, x, key):
    return eqx.filter_grad(lambda m: posterior.expected_log_joint(m, x, key)[0])(model)


def test_gating_keeps_weights_where_the_ess_is_high():
    log_lik = jnp.stack([jnp.zeros(100), jnp.zeros(100).at[3].set(50.0)])
    posterior = ImportanceSampling(100, 0.5, "residual")
    w, ess, resampled = posterior.weights(log_lik, jax.random.key(0))
    np.testing.assert_allclose(ess, [100, 1], rtol=1e-4)
    np.testing.assert_array_equal(resampled, [0, 1])
    np.testing.assert_allclose(w[0], 0.01, rtol=1e-5)
    np.testing.assert_allclose(w[1, 3], 1.0)


def test_gradient_is_the_maximum_likelihood_gradient():
    """With unresampled weights, the gradient of the log-marginal estimate itself, by autodiff.

    d/dtheta log (1/N) sum_s p(x|z_s) equals sum_s w_s d/dtheta log p(x|z_s) for fixed z_s.
    """
    model, key = small_model(), jax.random.key(1)
    x = jax.random.uniform(jax.random.key(2), (3, 4, 4, 1))
    posterior = ImportanceSampling(50, 0.5, "none")
    ours = gradient(posterior, model, x, key)
    sample_key, noise_key, _, _ = jax.random.split(key, 4)
    u = jax.random.uniform(sample_key, (*model.prior.shape, 50))
    z = jnp.moveaxis(model.prior.build_table().inverse_cdf(u), -1, 0)

    def log_marginal(m):
        log_lik = m.log_likelihood_matrix(x, m.decode(z, noise_key))
        return jnp.mean(jax.nn.logsumexp(log_lik, axis=1))

    theirs = eqx.filter_jit(eqx.filter_grad(log_marginal))(model)
    for a, b in zip(
        jax.tree.leaves(ours.generator), jax.tree.leaves(theirs.generator), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


def test_prior_gradient_is_contrastive_divergence():
    """Positive phase by hand minus the quadrature of the negative one."""
    model, key = small_model(), jax.random.key(4)
    x = jax.random.uniform(jax.random.key(2), (3, 4, 4, 1))
    posterior = ImportanceSampling(50, 0.5, "residual")
    ours = gradient(posterior, model, x, key)
    sample_key, noise_key, weight_key, _ = jax.random.split(key, 4)
    u = jax.random.uniform(sample_key, (*model.prior.shape, 50))
    z = jnp.moveaxis(model.prior.build_table().inverse_cdf(u), -1, 0)
    log_lik = model.log_likelihood_matrix(x, model.decode(z, noise_key))
    w = posterior.weights(log_lik, weight_key)[0].mean(axis=0)
    theirs = eqx.filter_jit(eqx.filter_grad(lambda p: w @ p.log_prob(z)))(model.prior)
    for a, b in zip(jax.tree.leaves(ours.prior), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def test_sampled_negative_phase_agrees_on_average():
    model, x = small_model(), jax.random.uniform(jax.random.key(2), (3, 4, 4, 1))

    def gradient(posterior, key):
        grads = eqx.filter_grad(lambda m: posterior.expected_log_joint(m, x, key)[0])(model)
        return grads.prior.energies.basis.coefficients

    keys = jax.random.split(jax.random.key(7), 400)
    posteriors = [ImportanceSampling(50, 0.5, "none", p) for p in ("sampled", "quadrature")]
    sampled, exact = (np.asarray(jax.lax.map(partial(gradient, p), keys)) for p in posteriors)
    difference = sampled - exact
    error = difference.std(axis=0) / np.sqrt(len(keys))
    assert (np.abs(difference.mean(axis=0)) < 4.5 * error + 1e-5).all()
    assert difference.std() > 0


def test_info_reports_collapse():
    model = small_model()
    model = KAEM(model.prior, model.generator, noise=0.001)
    x = jax.random.uniform(jax.random.key(2), (8, 4, 4, 1))
    _, info = eqx.filter_jit(ImportanceSampling(64).expected_log_joint)(model, x, jax.random.key(0))
    assert isinstance(info, ImportanceInfo)
    assert info.collapsed == 1
    assert info.resampled == 1
    np.testing.assert_allclose(info.ess, 1, atol=0.3)


def test_wrong_data_shape_is_named():
    with pytest.raises(ValueError, match=r"\(4, 4, 1\)"):
        ImportanceSampling(10).expected_log_joint(
            small_model(), jnp.zeros((2, 5, 5, 1)), jax.random.key(0)
        )


@pytest.mark.parametrize(
    "bad", [dict(resampler="best"), dict(samples=0), dict(threshold=2.0), dict(negative_phase="no")]
)
def test_bad_arguments_are_refused(bad):
    with pytest.raises(ValueError, match=r"resampler|samples|negative_phase"):
        ImportanceSampling(**bad)
