r"""Chebyshev polynomials $T_0,\dots,T_n$ on the interval of the grid, mapped to $[-1, 1]$.

Beyond the interval the input is clamped: a polynomial has no business extrapolating.
"""

from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ._basis import LinearBasis, glorot, uniform_grid


class Chebyshev(LinearBasis):
    """Polynomials of degree `size`; smooth and global."""

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
        decay = amplitude / (1 + jnp.arange(size + 1.0)) ** 2
        noise = jax.random.uniform(noise_key, (outputs, inputs, size + 1)) - 0.5
        return cls(
            grid=uniform_grid(inputs, 2, interval),
            coefficients=noise * decay * glorot(scale_key, outputs, inputs)[..., None] * scale,
        )

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        lo, hi = jax.lax.stop_gradient(self.grid).T
        t = jnp.clip((2 * x - lo - hi) / (hi - lo), -1, 1)
        polynomials = [jnp.ones_like(t), t]
        for _ in range(self.coefficients.shape[-1] - 2):
            polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
        return jnp.stack(polynomials, axis=-1)
