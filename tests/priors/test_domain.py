"""Where the density of a prior is zero, every way of asking says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem.priors import open_uniform
from support.linear_gaussian import normal_prior
from support.priors import flat_prior


@pytest.mark.parametrize("prior", [flat_prior(), normal_prior(3, 64)], ids=["flat", "normal"])
def test_all_log_densities_agree_outside_the_domain(prior):
    """-inf by every way of asking; weights of zero do not count."""
    inside = prior.sample(jax.random.key(0), 3)
    outside = inside.at[1].set(100.0)
    weights = jnp.array([0.5, 0.0, 0.5])

    @jax.jit
    def expected(z, weights):
        last = jnp.moveaxis(z, 0, -1)
        return prior.expected_log_prob(last, weights, prior.log_normaliser())

    assert np.isneginf(prior.log_prob(outside)[1])
    assert np.isneginf(jax.jit(lambda z: prior.mean_log_prob(z))(outside))
    assert np.isneginf(jnp.sum(jax.jit(lambda z: prior.potential()(z)[0])(outside)[1]))
    np.testing.assert_allclose(expected(outside, weights), expected(inside, weights), rtol=1e-5)


def test_uniforms_are_never_at_an_end(monkeypatch):
    u = np.asarray(open_uniform(jax.random.key(0), (1000, 1000)))
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.ravel()[:100_000], "uniform").pvalue > 1e-4
    # The draw that happens once in eight million times.
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape, *_: jnp.zeros(shape))
    prior = normal_prior(3, 512)
    chains = jax.jit(lambda: prior.for_chains()[1](jax.random.key(0), 2))
    for z in (prior.sample(jax.random.key(0), 2), chains()):
        np.testing.assert_allclose(z, stats.norm.ppf(2.0**-24), atol=0.05)
