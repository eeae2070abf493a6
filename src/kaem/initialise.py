"""Where initial parameters come from: NumPy, seeded by JAX keys, so that making a model compiles nothing."""

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


def host_rng(key: PRNGKeyArray) -> np.random.Generator:
    """Return NumPy's generator seeded by a JAX key: initialising a model then compiles nothing."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def as_array(values: Array | np.ndarray) -> Array:
    """Return numbers as a float32 array; `jnp.asarray` would compile a program for every shape."""
    return jax.device_put(np.asarray(values, np.float32))


def glorot(rng: np.random.Generator, outputs: int, inputs: int) -> Float[np.ndarray, "Q P"]:
    """Draw Glorot-normal weights: variance 2 / (inputs + outputs)."""
    return rng.normal(0, (2 / (inputs + outputs)) ** 0.5, (outputs, inputs))
