"""Latents of one's own examples, where their posterior is known."""

import jax
import jax.numpy as jnp
import numpy as np

from kaem import KAEM
from support.linear_gaussian import Linear, normal_prior


def test_the_posterior_of_ones_own_examples():
    """Linear-Gaussian: the mean and the spread of p(z | x) are known."""
    matrix = jnp.asarray([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
    model = KAEM(normal_prior(2, 256), Linear(matrix), noise=0.6)
    x = np.tile(np.array([0.7, -1.1, 0.4]), (1500, 1))
    z = np.asarray(model.posterior(x, jax.random.key(0), proposals=512, steps=60), float)
    covariance = np.linalg.inv(np.eye(2) + matrix.T @ matrix / 0.36)
    mean = covariance @ matrix.T @ x[0] / 0.36
    # 1,500 chains that share their proposals: 5 standard errors of independent draws.
    np.testing.assert_allclose(z.mean(0), mean, atol=5 * np.sqrt(covariance.max() / 1500))
    np.testing.assert_allclose(np.cov(z.T), covariance, atol=0.15 * covariance.max())
