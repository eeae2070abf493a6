"""A generator that is affine, and data of it: the evidence is Gaussian."""

import equinox as eqx
import jax
import numpy as np

from kaem.generators import AbstractGenerator

W = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
B = np.array([0.1, -0.2, 0.3])
NOISE = 0.5


class Affine(AbstractGenerator):
    """x = W z + b, whose evidence is Gaussian."""

    weight: jax.Array
    bias: jax.Array
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, z):
        return self.weight @ z + self.bias


def data(n):
    rng = np.random.default_rng(1)
    z = rng.normal(size=(n, 2))
    return (z @ W.T + B + NOISE * rng.normal(size=(n, 3))).astype(np.float32)
