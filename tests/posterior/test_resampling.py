"""Resampling: whole counts, the right expectations, and the variances of theory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem.posterior import RESAMPLERS

SCHEMES = [name for name in RESAMPLERS if name != "none"]


def weights_of(n, seed=0, concentration=0.3):
    return jnp.asarray(
        np.random.default_rng(seed).dirichlet(np.full(n, concentration)), jnp.float32
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [10, 100, 300])
def test_counts_are_whole_and_complete(scheme, n):
    counts = jax.vmap(lambda k: RESAMPLERS[scheme](k, weights_of(n)))(
        jax.random.split(jax.random.key(0), 50)
    )
    assert (np.asarray(counts) == np.round(counts)).all()
    assert (np.asarray(counts) >= 0).all()
    np.testing.assert_array_equal(counts.sum(axis=1), n)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_expected_counts_are_n_times_the_weights(scheme):
    """20,000 resamplings; 4.5 standard errors, with 30 comparisons per scheme."""
    n, trials = 30, 20_000
    w = weights_of(n)
    keys = jax.random.split(jax.random.key(1), trials)
    counts = np.asarray(jax.vmap(lambda k: RESAMPLERS[scheme](k, w))(keys))
    error = counts.std(axis=0) / np.sqrt(trials)
    assert (np.abs(counts.mean(axis=0) - n * w) < 4.5 * error + 2e-3).all()


def test_residual_has_less_variance_than_multinomial():
    """And the amount the theory says: multinomial variance of the residual draws alone."""
    n, trials = 30, 20_000
    w = np.asarray(weights_of(n), np.float64)
    keys = jax.random.split(jax.random.key(2), trials)
    variance = {
        s: np.asarray(
            jax.vmap(lambda k, s=s: RESAMPLERS[s](k, jnp.asarray(w, jnp.float32)))(keys)
        ).var(axis=0)
        for s in SCHEMES
    }
    np.testing.assert_allclose(variance["multinomial"].sum(), (n * w * (1 - w)).sum(), rtol=0.03)
    residue = n * w - np.floor(n * w)
    share = residue / residue.sum()
    expected = (residue.sum() * share * (1 - share)).sum()
    np.testing.assert_allclose(variance["residual"].sum(), expected, rtol=0.03)
    assert variance["residual"].sum() < 0.8 * variance["multinomial"].sum()
    assert variance["systematic"].sum() <= variance["stratified"].sum() * 1.05


@pytest.mark.parametrize("scheme", SCHEMES)
def test_degenerate_weights(scheme):
    one_hot = jnp.zeros(50).at[17].set(1.0)
    np.testing.assert_array_equal(RESAMPLERS[scheme](jax.random.key(0), one_hot), 50 * one_hot)
    if scheme in ("residual", "systematic", "stratified"):
        even = RESAMPLERS[scheme](jax.random.key(0), jnp.full(64, 1 / 64))
        np.testing.assert_array_equal(even, np.ones(64))
