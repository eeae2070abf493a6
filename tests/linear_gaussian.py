"""A generator that is a matrix and a prior that is a normal: a model about which everything is known."""

import equinox as eqx
import jax
import jax.numpy as jnp

from kaem import MixturePrior
from kaem.generators import AbstractGenerator


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
