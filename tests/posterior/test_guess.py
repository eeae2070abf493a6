"""What encoders say of latents: exact densities on a prior's domain, against quadrature and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from kaem.posterior.guess import Bent, Normal

MEAN, LOG_VARIANCE = jnp.array([[0.3, -0.8]]), jnp.array([[-1.0, 0.4]])
NORMAL = Normal(MEAN, LOG_VARIANCE)
MIXING = jnp.array([[1.2, -0.5], [0.4, 0.9]])
BOUNDS = (jnp.array([-1.0, -2.0]), jnp.array([2.0, 3.0]))


def test_the_normal_is_that_of_scipy():
    scale = np.exp(0.5 * np.asarray(LOG_VARIANCE[0]))
    own = stats.norm(np.asarray(MEAN[0]), scale)
    z = np.array([[0.1, 0.2]])
    np.testing.assert_allclose(NORMAL.log_prob(z), own.logpdf(z).sum(), rtol=1e-5)
    np.testing.assert_allclose(NORMAL.entropy(), own.entropy().sum(), rtol=1e-6)


@pytest.mark.parametrize("mixing", [None, MIXING], ids=["plain", "mixed"])
def test_the_density_on_a_narrow_domain_integrates_to_one(mixing):
    guess = Bent(NORMAL, mixing, BOUNDS)
    log_prob = jax.jit(jax.vmap(lambda z: guess.log_prob(z[None])[0]))
    a, b = (np.linspace(lo + 1e-4, hi - 1e-4, 801) for lo, hi in zip(*BOUNDS, strict=True))
    grid = np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(np.asarray(log_prob(grid), float)).reshape(801, 801)
    total = integrate.simpson(integrate.simpson(density, x=b), x=a)
    assert abs(total - 1) < 5e-3


def test_draws_stay_in_the_domain_and_have_the_density_and_entropy_that_are_stated():
    n = 20_000
    many = Normal(jnp.tile(MEAN, (n, 1)), jnp.tile(LOG_VARIANCE, (n, 1)))
    guess = Bent(many, MIXING, BOUNDS)
    z, entropy = guess.draw_with_entropy(jax.random.key(0))
    lo, hi = (np.asarray(bound) for bound in BOUNDS)
    assert (z >= lo).all()
    assert (z <= hi).all()
    log_q = np.asarray(guess.log_prob(z), float)
    # Both estimate the same entropy: within five standard errors of their difference.
    gap = np.asarray(entropy, float) + log_q
    assert abs(gap.mean()) < 5 * gap.std() / n**0.5
    # Importance weights of a known integral: the volume of the domain's inner half.
    inner = np.all(np.abs(np.asarray(z) - (lo + hi) / 2) < (hi - lo) / 4, axis=1)
    weights = inner * np.exp(-log_q)
    volume = np.prod((hi - lo) / 2)
    assert abs(weights.mean() - volume) < 5 * weights.std() / n**0.5


def test_on_a_wide_domain_nothing_is_bent():
    wide = (jnp.full(2, -1e3), jnp.full(2, 1e3))
    guess = Bent(NORMAL, MIXING, wide)
    z = guess.draw(jax.random.key(1))
    np.testing.assert_allclose(z, NORMAL.draw(jax.random.key(1)) @ MIXING.T, rtol=1e-5)
    own = stats.multivariate_normal(
        np.asarray(MIXING @ MEAN[0]),
        np.asarray(MIXING @ np.diag(np.exp(LOG_VARIANCE[0])) @ MIXING.T),
    )
    np.testing.assert_allclose(guess.log_prob(z), own.logpdf(np.asarray(z)), rtol=1e-4)
    np.testing.assert_allclose(guess.mean, MEAN @ MIXING.T, rtol=1e-5)


def test_outside_of_the_domain_there_is_no_density():
    guess = Bent(NORMAL, None, BOUNDS)
    assert guess.log_prob(jnp.array([[2.5, 0.0]]))[0] == -jnp.inf


def test_latents_have_the_shape_of_the_domain():
    bounds = (jnp.full((2, 3), -1.0), jnp.full((2, 3), 1.0))
    guess = Bent(Normal(jnp.zeros((5, 6)), jnp.zeros((5, 6))), None, bounds)
    z = guess.draw(jax.random.key(0))
    assert z.shape == (5, 2, 3)
    assert guess.log_prob(z).shape == (5,)
