"""A generator that is a matrix and a prior that is a normal: a model about which everything is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kaem import KAEM, MixturePrior
from kaem.generators import AbstractGenerator
from kaem.posterior.kernels import Evaluation

# z ~ N(0, I), x | z ~ N(A z, s^2): the posterior is Gaussian.
A = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
X = np.array([0.7, -1.1, 0.4])
NOISE = 0.6


class Linear(AbstractGenerator):
    """x = A z."""

    matrix: jax.Array
    data_shape: tuple[int, ...] = eqx.field(static=True, default=(3,))

    def __call__(self, z):
        return self.matrix @ z.reshape(-1)


def normal_prior(coordinates, cells):
    """A mixture without energy is its reference."""
    prior = MixturePrior(2, coordinates, key=jax.random.key(0), cells=cells)
    return eqx.tree_at(lambda p: p.energies.basis.weight, prior, jnp.zeros((coordinates, 2)))


def gaussian(z):
    """`evaluate` of the linear-Gaussian model."""
    gap = X - z @ A.T
    likelihood = -0.5 * jnp.sum(gap**2, -1) / NOISE**2
    return Evaluation(likelihood, gap @ A / NOISE**2, -0.5 * jnp.sum(z**2, -1), -z)


def power_posterior(t=1.0):
    precision = np.eye(2) + t * A.T @ A / NOISE**2
    covariance = np.linalg.inv(precision)
    return covariance @ (t * A.T @ X) / NOISE**2, covariance, precision


def assert_moments(z, mean, covariance, sigmas=4.5):
    """Sample moments of independent Gaussian chains: a false alarm in 10^5 for each number."""
    n = len(z)
    scale = np.sqrt(np.diag(covariance))
    assert (np.abs(z.mean(0) - mean) < sigmas * scale / np.sqrt(n)).all()
    spread = np.sqrt((np.outer(scale, scale) ** 2 + covariance**2) / n)
    assert (np.abs(np.cov(z.T) - covariance) < sigmas * spread).all()


def linear_model():
    return KAEM(normal_prior(2, 256), Linear(jnp.asarray(A, jnp.float32)), NOISE)
