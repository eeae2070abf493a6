r"""Fourier series $\sum_k a_k \cos(k\omega z) + b_k \sin(k\omega z)$ with $\omega = \pi / (z_{\max} - z_{\min})$.

The period is twice the interval of the grid, so that the two ends are free to differ.
"""

from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ._basis import LinearBasis, glorot, uniform_grid


class Fourier(LinearBasis):
    """`size` cosines and as many sines."""

    grid: Float[Array, "P 2"]
    coefficients: Float[Array, "Q P B"]

    @classmethod
    def init(
        cls,
        inputs: int,
        outputs: int,
        *,
        size: int,
        interval: tuple[float, float],
        amplitude: float,
        scale: float,
        key: PRNGKeyArray,
    ) -> Self:
        noise_key, scale_key = jax.random.split(key)
        decay = amplitude / jnp.tile(jnp.arange(1.0, size + 1), 2) ** 2
        noise = jax.random.uniform(noise_key, (outputs, inputs, 2 * size)) - 0.5
        return cls(
            grid=uniform_grid(inputs, 2, interval),
            coefficients=noise * decay * glorot(scale_key, outputs, inputs)[..., None] * scale,
        )

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        lo, hi = jax.lax.stop_gradient(self.grid).T
        orders = jnp.arange(1, self.coefficients.shape[-1] // 2 + 1)
        phase = jnp.pi * ((x - lo) / (hi - lo))[:, None] * orders
        return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=-1)
