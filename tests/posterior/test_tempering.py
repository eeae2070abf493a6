"""Power posteriors: exchanges leave them invariant, and populations find every mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from kaem.learning.schedules import power_law
from kaem.posterior import ULA, Population, swap
from kaem.posterior.kernels import Evaluation
from support.linear_gaussian import assert_moments, gaussian, power_posterior


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


# Two modes: likelihood peaks at -2 and 2 under a N(0, 1) prior.
def two_modes(z):
    def log_likelihood(z):
        left = jnp.log(0.55) - 0.5 * ((z[..., 0] + 2) / 0.25) ** 2
        right = jnp.log(0.45) - 0.5 * ((z[..., 0] - 1.8) / 0.25) ** 2
        return jnp.logaddexp(left, right)

    value, pull = jax.vjp(log_likelihood, z)
    (slope,) = pull(jnp.ones_like(value))
    return Evaluation(value, slope, -0.5 * jnp.sum(z**2, -1), -z)


def right_share():
    def density(z):
        left = 0.55 * np.exp(-0.5 * ((z + 2) / 0.25) ** 2)
        right = 0.45 * np.exp(-0.5 * ((z - 1.8) / 0.25) ** 2)
        return (left + right) * stats.norm.pdf(z)

    pieces = [integrate.quad(density, a, b)[0] for a, b in ((-6, 0), (0, 6))]
    return pieces[1] / sum(pieces)


@pytest.mark.slow
def test_a_single_chain_is_stuck_where_a_population_finds_both_modes():
    n, key = 4000, jax.random.key(0)
    z, _ = run(ULA(), 0.01, two_modes, jnp.full((n, 1), -2.0), 400, key)
    assert np.mean(z > 0) < 0.001

    population, t = Population(ULA()), power_law(8, 3.0)

    def draw(key):
        return jax.random.normal(key, (n, 1))

    @jax.jit
    def loop(z):
        def step(i, carry):
            state, trips, rates = carry
            state, info = population.step(
                two_modes, state, t, 0.01, jax.random.fold_in(key, i), draw
            )
            return state, trips + info.trips, rates + info.swapped / 200

        first = population.init(two_modes, z)
        return jax.lax.fori_loop(0, 400, step, (first, 0.0, jnp.zeros(8)))

    state, trips, rates = loop(jnp.full((8, n, 1), -2.0))
    found = float(jnp.mean(state.chains.z[-1] > 0))
    share = right_share()
    assert 0.3 < share < 0.7
    assert abs(found / share - 1) < 0.05
    assert float(trips) > 1  # every example got several visitors from the prior
    assert float(rates.min()) > 0.2


def test_swaps_leave_every_power_posterior_invariant():
    """Exact draws at each level, exchanged many times, are still exact draws at each level."""
    n, t = 40_000, jnp.array([0.0, 0.15, 0.5, 1.0])
    key = jax.random.key(0)
    laws = [power_posterior(float(v)) for v in t]
    z = jnp.stack(
        [
            jax.random.multivariate_normal(jax.random.fold_in(key, k), jnp.asarray(m), jnp.asarray(c), (n,))
            for k, (m, c, _) in enumerate(laws)
        ]
    )  # fmt: skip
    moved = jnp.zeros((3, n))
    for i in range(6):
        (z,), accepted = swap(
            jax.random.fold_in(key, 100 + i), (z,), gaussian(z).log_likelihood, t, jnp.int32(i % 2)
        )
        moved += accepted
    for level, (mean, covariance, _) in enumerate(laws):
        assert_moments(np.asarray(z[level], float), mean, covariance)
    assert (np.asarray(moved.mean(1)) > 0.5).all()  # and they did exchange


def test_a_swap_changes_only_those_who_accepted():
    z = jax.random.normal(jax.random.key(0), (5, 300, 2))
    t = power_law(4, 2.0)
    for parity in (0, 1):
        (new, marks), accepted = swap(
            jax.random.key(1),
            (z, jnp.broadcast_to(jnp.arange(5)[:, None], (5, 300))),
            gaussian(z).log_likelihood,
            t,
            jnp.int32(parity),
        )
        accepted, marks = np.asarray(accepted), np.asarray(marks)
        assert not accepted[1 - parity :: 2].any()
        assert accepted[parity::2].any()
        assert not accepted[parity::2].all()
        for k in range(4):
            took, stayed = accepted[k], ~accepted[k]
            assert (marks[k][took] == k + 1).all()
            assert (marks[k + 1][took] == k).all()
            if k % 2 == parity:
                np.testing.assert_array_equal(new[k][stayed], z[k][stayed])
                np.testing.assert_array_equal(new[k + 1][stayed], z[k + 1][stayed])
