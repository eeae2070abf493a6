"""Small models, and a generator of one's own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kaem import KAEM, KAN, AbstractGenerator, MixturePrior, UnivariatePrior


def small():
    a, b = jax.random.split(jax.random.key(0))
    generator = KAN(5, (4, 4, 1), key=b, depth=2)
    return KAEM(UnivariatePrior(2, key=a, cells=64), generator, noise=0.2)


def digits(n=64):
    rng = np.random.default_rng(0)
    return (255 * rng.uniform(size=(n, 4, 4, 1)) ** 3).astype(np.uint8)


class Dense(AbstractGenerator):
    """A generator of one's own, with a network of Equinox inside."""

    network: eqx.nn.MLP
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, latents, data_shape, *, key):
        self.network = eqx.nn.MLP(latents, int(np.prod(data_shape)), 16, 2, jax.nn.silu, key=key)
        self.data_shape = data_shape

    def __call__(self, z):
        return self.network(z).reshape(self.data_shape)


def own():
    # As many cells as its exact tables need: nothing is refined, and nothing compiled for that.
    prior = MixturePrior(2, 3, key=jax.random.key(0), cells=2048, domain=(-6.0, 6.0))
    return KAEM(prior, Dense(3, (4, 2), key=jax.random.key(1)), noise=0.3)


def bent(depth=3, scale=3.0):
    """A model whose layers are steep, as trained ones are: small changes grow on their way."""
    a, b = jax.random.split(jax.random.key(0))
    generator = KAN(5, (6, 6, 1), key=b, depth=depth)
    rng = np.random.default_rng(0)

    def strong(layer):
        noise = rng.normal(size=layer.basis.coefficients.shape) * scale / layer.shape[1]
        return eqx.tree_at(lambda f: f.basis.coefficients, layer, jnp.asarray(noise, jnp.float32))

    layers = tuple(map(strong, generator.layers))
    generator = eqx.tree_at(lambda g: g.layers, generator, layers)
    return KAEM(UnivariatePrior(2, key=a), generator, noise=0.2)
