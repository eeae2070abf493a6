r"""Fourier series $\sum_k a_k \cos(k\omega z) + b_k \sin(k\omega z)$ with $\omega = \pi / (z_{\max} - z_{\min})$.

The period is twice the interval of the grid, so that the two ends are free to differ.
"""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array, glorot
from ..methods import FIXED
from ._basis import LinearBasis, Start, uniform_grid


class Fourier(LinearBasis):
    """`size` cosines and as many sines."""

    grid: Float[Array, "P 2"] = eqx.field(metadata=FIXED)
    coefficients: Float[Array, "Q P B"]

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        decay = start.amplitude / np.tile(np.arange(1, start.size + 1), 2) ** 2
        noise = rng.uniform(-0.5, 0.5, (outputs, inputs, 2 * start.size))
        weights = glorot(rng, outputs, inputs)[..., None] * start.scale
        return cls(uniform_grid(inputs, 2, start.interval), as_array(noise * decay * weights))

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        lo, hi = jax.lax.stop_gradient(self.grid).T
        orders = jnp.arange(1, self.coefficients.shape[-1] // 2 + 1)
        phase = jnp.pi * ((x - lo) / (hi - lo))[:, None] * orders
        return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=-1)
