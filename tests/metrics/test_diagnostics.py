"""Diagnostics against processes of known autocorrelation, and posteriors known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import KAEM
from kaem.baselines import VAE, Encoder, NeuralEBM, NeuralPrior
from kaem.errors import UserError
from kaem.metrics.diagnostics import (
    active_coordinates,
    effective_sample_size,
    importance_ess,
    posterior_diagnostics,
    quantile_divergence,
    r_hat,
)
from support.linear_gaussian import Linear, normal_prior


def autoregressive(phi, shape, seed=0):
    """Stationary AR(1) chains [m, n, ...] of unit variance, with correlations phi^s."""
    noise = np.random.default_rng(seed).normal(size=shape)
    z = np.empty(shape)
    z[:, 0] = noise[:, 0]
    for i in range(1, shape[1]):
        z[:, i] = phi * z[:, i - 1] + (1 - phi**2) ** 0.5 * noise[:, i]
    return z


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.4])
def test_the_effective_sample_size_is_that_of_an_autoregression(phi):
    """Its autocorrelation time is (1 + phi) / (1 - phi); 60 chains of chains average the noise."""
    found = effective_sample_size(autoregressive(phi, (4, 2000, 60)))
    assert found.shape == (60,)
    assert found.mean() / 8000 == pytest.approx((1 - phi) / (1 + phi), rel=0.08)


def test_the_effective_sample_size_predicts_the_error_of_a_mean():
    z = autoregressive(0.8, (4, 500, 400), seed=1)
    spread = z.mean(axis=(0, 1)).std()
    predicted = np.mean(1 / np.sqrt(effective_sample_size(z)))
    assert predicted == pytest.approx(spread, rel=0.15)  # a spread of 400 means is known to 3.5%


def test_chains_stuck_in_different_places_are_one_draw_each():
    rng = np.random.default_rng(0)
    z = 0.01 * rng.normal(size=(4, 1000)) + np.arange(4)[:, None]
    assert effective_sample_size(z) < 12  # halves of four chains are eight
    assert effective_sample_size(np.ones((4, 1000))) == 4000
    assert r_hat(z) > 2


def test_r_hat_sees_shifts_and_widths_and_nothing_else():
    z = np.random.default_rng(0).normal(size=(4, 1000, 50))
    assert (r_hat(z) < 1.01).all()
    assert r_hat(z).shape == (50,)
    shifted = z.copy()
    shifted[0] += 1
    # Variance between: that of (1, 0, 0, 0), 1/4, on the scale of the draws, so about sqrt(1.2).
    np.testing.assert_allclose(r_hat(shifted), (1 + 0.2) ** 0.5, atol=0.05)
    wider = z.copy()
    wider[0] *= 3
    assert (r_hat(wider) > 1.05).all()
    drifting = z + np.linspace(-1, 1, 1000)[None, :, None]  # within chains: only halves differ
    assert (r_hat(drifting) > 1.05).all()
    # Ranks know no moments: Cauchy chains that agree are in order, and any monotone map is alike.
    assert (r_hat(np.tan(np.pi * (stats.norm.cdf(z) - 0.5))) < 1.01).all()


def test_weights_are_worth_what_their_spread_says():
    assert importance_ess(np.zeros((3, 7))) == pytest.approx(np.full(3, 7.0))
    assert importance_ess([0.0, -1000.0, -1000.0]) == pytest.approx(1)
    log_w = np.random.default_rng(0).normal(0, 0.5, 200_000) - 1e4
    assert importance_ess(log_w) / 200_000 == pytest.approx(np.exp(-0.25), rel=0.02)


def test_the_divergence_is_that_of_the_bins_without_bias():
    """Draws of known bins in groups that agree within: 300 repetitions average the noise."""
    rng, bins, n = np.random.default_rng(0), 8, 100
    for p in (np.full(bins, 1 / bins), np.arange(1, bins + 1) / 36):
        exact = np.sum(p * np.log(p * bins))
        shares = rng.multinomial(1, p, size=(n, 300)).astype(float)  # one draw seen many times
        found = quantile_divergence(shares)
        assert abs(found.kl.mean() - exact) < 4.5 * found.kl.std() / 300**0.5
        # The uncorrected estimate is too high by (M - 1) / 2n = 0.035.
        plain = np.sum(shares.mean(0) * np.log(np.maximum(shares.mean(0) * bins, 1e-9)), -1)
        assert plain.mean() - exact > 0.025
        assert found.kl.std() == pytest.approx(np.mean(found.error), rel=0.25)


# Columns at right angles, so that latents are independent a posteriori; the last does nothing.
A = np.array([[1.0, 0.2, 0.0], [-1.0, 0.2, 0.0], [0.0, 0.3, 0.0]])
NOISE = 0.5
VARIANCE = 1 / (1 + np.sum(A**2, 0) / NOISE**2)  # of the posterior
BINS = 16


def model_and_data(n, scale=1.0):
    prior = normal_prior(3, 512)
    rng = np.random.default_rng(1)
    x = scale * (rng.normal(size=(n, 3)) @ A.T + NOISE * rng.normal(size=(n, 3)))
    return KAEM(prior, Linear(jnp.asarray(A, jnp.float32)), NOISE), x.astype(np.float32)


def binned(mean, deviation):
    """Shares of N(mean, deviation^2) in the bins of equal mass under the standard normal."""
    edges = stats.norm.ppf(np.linspace(0, 1, BINS + 1))
    return np.diff(stats.norm.cdf((edges - np.asarray(mean)[..., None]) / deviation))


def means(x):
    """E[z | x] of every example."""
    return x @ A * VARIANCE / NOISE**2


def test_data_of_the_model_itself_agree_with_the_prior():
    model, x = model_and_data(192)
    found = posterior_diagnostics(model, x, key=jax.random.key(0), steps=250, batch=96)
    assert found["ess"].shape == found["r_hat"].shape == (192, 3)
    assert np.median(found["r_hat"]) < 1.03
    assert np.quantile(found["ess"], 0.05) > 20
    assert 0.45 < found["acceptance"].mean() < 0.7
    # Nothing to see: three coordinates within 4.5 errors, a false alarm in 50,000.
    assert (np.abs(found["mismatch"]) < 4.5 * found["mismatch_error"]).all()
    p = np.stack([binned(means(x)[:, q], VARIANCE[q] ** 0.5) for q in range(3)])
    exact = np.sum(p * np.log(np.maximum(p, 1e-300) * BINS), axis=-1).mean(axis=1)
    np.testing.assert_allclose(found["information"], exact, atol=0.03)
    assert exact[0] > 0.8
    assert found["active_coordinates"] == 2 == active_coordinates(exact)


def test_data_that_are_wider_than_the_models_disagree_with_the_prior():
    model, x = model_and_data(192, scale=2.0)
    seen = posterior_diagnostics(model, x, key=jax.random.key(1), steps=250, batch=96)
    kl, error = seen["mismatch"], seen["mismatch_error"]
    aggregate = np.stack([binned(means(x)[:, q], VARIANCE[q] ** 0.5).mean(0) for q in range(3)])
    exact = np.sum(aggregate * np.log(aggregate * BINS), axis=1)
    # The error is for other examples of the kind; of these very ones the estimate is surer.
    assert (np.abs(kl - exact) < 3 * error + 0.05).all()
    assert kl[0] > 5 * error[0]
    assert abs(kl[2]) < 4.5 * error[2]


def test_a_vae_has_diagnostics_and_a_fixed_step_is_kept():
    _, x = model_and_data(16)
    generator = Linear(jnp.asarray(A, jnp.float32))
    vae = VAE(Encoder((3,), 3, key=jax.random.key(0), widths=()), generator, NOISE)
    found = posterior_diagnostics(vae, x, key=jax.random.key(0), steps=60, step_size=1e-4)
    assert found["acceptance"].min() > 0.99
    assert np.median(found["r_hat"]) > 1.5  # chains that hardly moved say nothing
    assert np.isinf(found["mismatch_error"]).all()


def test_what_cannot_be_diagnosed_is_refused():
    model, x = model_and_data(4)
    generator = Linear(jnp.asarray(A, jnp.float32))
    neural = NeuralEBM(NeuralPrior(3, key=jax.random.key(0), widths=(4,)), generator, NOISE)
    with pytest.raises(
        UserError, match=r"needs a prior with independent.*NeuralEBM.*KAEM or a VAE"
    ):
        posterior_diagnostics(neural, x, key=jax.random.key(0))
    with pytest.raises(ValueError, match="at least 2 chains, 8 steps and 2 examples"):
        posterior_diagnostics(model, x, key=jax.random.key(0), chains=1)
    with pytest.raises(ValueError, match="got examples of shape"):
        posterior_diagnostics(model, x[:, :2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="at least 4 draws"):
        effective_sample_size(np.zeros(10))
