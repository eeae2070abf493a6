"""Generators whose every effect is known, over latents that are truncated normals."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from kaem.generators import AbstractGenerator
from kaem.models import KAEM
from kaem.priors import UnivariatePrior

TRUNCATED = stats.truncnorm(-1.5, 1.5)
BRIGHT = (2, 1)  # the latent that moves the brightness
FEATURES = {
    "linear": lambda z: z,
    "square": lambda z: z**2,
    "product": lambda z: z * jnp.roll(z, 1, axis=1),
}


class Planted(AbstractGenerator):
    """Pixels 1/2 + weights applied to a feature of each latent: [Q, P] to an image."""

    weights: jax.Array  # [Q * P, X]
    q: int = eqx.field(static=True)
    feature: str = eqx.field(static=True, default="linear")
    data_shape: tuple[int, ...] = eqx.field(static=True, default=(4, 6, 1))

    def __call__(self, z):
        x = 0.5 + FEATURES[self.feature](z.reshape(1, -1)) @ self.weights
        return x.reshape(self.data_shape)


@cache
def reference_prior():
    """3 x 2 energies of zero: every latent is a normal truncated at 1.5."""
    prior = UnivariatePrior(2, 3, key=jax.random.key(0), activation=None)
    zero = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, replace_fn=jnp.zeros_like)
    return zero.refined().cache()


def planted(feature="linear", data_shape=(4, 6, 1)):
    """Latent (3, 2) moves all pixels alike; each other one moves two pixels apart, by less."""
    weights = np.zeros((6, 24), np.float32)
    for j in range(6):
        weights[j, 4 * j], weights[j, 4 * j + 1] = 0.02 * (j + 1), -0.02 * (j + 1)
    weights[5] = 0.15
    generator = Planted(jnp.asarray(weights), 3, feature, data_shape)
    return KAEM(reference_prior(), generator), weights.astype(np.float64)
