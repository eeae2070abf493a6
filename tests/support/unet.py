"""A UNet that does something before it is trained."""

import jax
import jax.numpy as jnp
import numpy as np


def awake(network, seed=1):
    """A network whose last layer, offsets and biases are no longer zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: a + jnp.asarray(0.1 * rng.normal(size=a.shape), jnp.float32), network
    )
