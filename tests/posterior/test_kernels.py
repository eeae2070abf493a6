"""Chains against analytic posteriors, within the domain of a prior and out of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem.posterior import MALA, SGLD, ULA
from kaem.posterior.kernels import Evaluation, reflected
from support.linear_gaussian import assert_moments, gaussian, power_posterior
from support.priors import flat_prior


def run(sampler, eta, evaluate, z, steps, key, t=1.0):
    @jax.jit
    def loop(z):
        def step(i, carry):
            state, accepted = carry
            state, info = sampler.step(evaluate, state, t, eta, jax.random.fold_in(key, i))
            return state, accepted + jnp.mean(info.acceptance)

        return jax.lax.fori_loop(0, steps, step, (sampler.init(evaluate, z), 0.0))

    state, accepted = loop(z)
    return np.asarray(state.z, float), float(accepted) / steps


def test_ula_has_its_own_known_law_at_a_large_step_and_the_posterior_at_a_small_one():
    mean, covariance, precision = power_posterior()
    start = jnp.zeros((20_000, 2))
    step = 0.2
    # z' = z - eta P (z - m) + sqrt(2 eta) xi has covariance P^-1 (I - eta P / 2)^-1.
    biased = np.linalg.inv(precision @ (np.eye(2) - step / 2 * precision))
    z, _ = run(ULA(), step, gaussian, start, 150, jax.random.key(0))
    assert_moments(z, mean, biased)
    with pytest.raises(AssertionError):
        assert_moments(z, mean, covariance)
    z, _ = run(ULA(), 0.003, gaussian, start, 2500, jax.random.key(1))
    assert_moments(z, mean, covariance)


def test_mala_has_no_bias_from_its_step():
    mean, covariance, _ = power_posterior()
    z, acceptance = run(MALA(), 0.2, gaussian, jnp.zeros((20_000, 2)), 150, jax.random.key(2))
    assert_moments(z, mean, covariance)
    assert 0.3 < acceptance < 0.99


def test_a_chain_without_a_batch_axis_is_a_chain():
    """One chain on its own walks as it does in a batch: rejections leave all of its state alone."""
    sampler, key = MALA(), jax.random.key(0)
    eta = 1.2  # so large that most proposals are rejected

    def walk(z):
        def step(i, carry):
            state, total = carry
            state, info = sampler.step(gaussian, state, 1.0, eta, jax.random.fold_in(key, i))
            return state, total + info.acceptance

        return jax.lax.fori_loop(0, 300, step, (sampler.init(gaussian, z), 0.0))

    state, accepted = jax.jit(walk)(jnp.zeros(2))
    assert 3 < float(accepted) < 297
    for kept, fresh in zip(state.here, gaussian(state.z), strict=True):
        np.testing.assert_allclose(kept, fresh, atol=1e-5)
    assert int(state.moves) == 300


def test_samplers_follow_the_temperature():
    mean, covariance, _ = power_posterior(0.3)
    z, _ = run(MALA(), 0.3, gaussian, jnp.zeros((20_000, 2)), 150, jax.random.key(3), t=0.3)
    assert_moments(z, mean, covariance)


@pytest.mark.slow
def test_sgld_comes_to_the_posterior():
    mean, covariance, _ = power_posterior()
    z, _ = run(SGLD(), 0.05, gaussian, jnp.zeros((20_000, 2)), 1500, jax.random.key(4))
    assert_moments(z, mean, covariance, sigmas=6)  # the last step, 0.0045, still has its bias


@pytest.mark.parametrize(
    ("sampler", "eta", "steps"),
    [(ULA(), 0.005, 400), (SGLD(), 0.01, 400), (MALA(), 0.02, 200)],
)
def test_chains_stay_in_the_domain_and_have_its_density(sampler, eta, steps):
    """No likelihood, a flat reference: nothing but the border keeps a chain in."""
    prior = flat_prior()
    potential = prior.potential()

    def evaluate(z):
        log_p, slope = potential(z)
        zeros = jnp.zeros(z.shape[:-2])
        return Evaluation(zeros, jnp.zeros_like(z), jnp.sum(log_p, axis=(-2, -1)), slope)

    within = eqx.tree_at(
        lambda s: s.domain, sampler, prior.bounds, is_leaf=lambda leaf: leaf is None
    )
    z, _ = run(
        within, eta, evaluate, prior.sample(jax.random.key(1), 2000), steps, jax.random.key(2)
    )
    assert ((z >= 0) & (z <= 1)).all()
    # Uniform quantiles of 4 x 2,000 independent chains: false alarm 1e-4; ULA's bias is far below it.
    u = np.asarray(prior.refined().cdf(jnp.asarray(z, jnp.float32)), float).ravel()
    assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_reflecting_is_folding_at_both_ends():
    domain = (jnp.array([-1.0]), jnp.array([2.0]))
    z = jnp.array([[-1.0], [2.0], [0.3], [-1.5], [2.25], [5.5], [-7.5], [jnp.nan]])
    folded = np.asarray(reflected(z, domain))[:, 0]
    np.testing.assert_allclose(folded, [-1, 2, 0.3, -0.5, 1.75, -0.5, -0.5, np.nan], atol=1e-6)
    assert reflected(z, None) is z
