r"""Chebyshev polynomials $T_0,\dots,T_n$ on the interval of the grid, mapped to $[-1, 1]$.

Beyond the interval the input is clamped: a polynomial has no business extrapolating.
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


class Chebyshev(LinearBasis):
    """Polynomials of degree `size`; smooth and global."""

    grid: Float[Array, "P 2"] = eqx.field(metadata=FIXED)
    coefficients: Float[Array, "Q P B"]

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        decay = start.amplitude / (1 + np.arange(start.size + 1)) ** 2
        noise = rng.uniform(-0.5, 0.5, (outputs, inputs, start.size + 1))
        weights = glorot(rng, outputs, inputs)[..., None] * start.scale
        return cls(uniform_grid(inputs, 2, start.interval), as_array(noise * decay * weights))

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        lo, hi = jax.lax.stop_gradient(self.grid).T
        t = jnp.clip((2 * x - lo - hi) / (hi - lo), -1, 1)
        polynomials = [jnp.ones_like(t), t]
        for _ in range(self.coefficients.shape[-1] - 2):
            polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
        return jnp.stack(polynomials, axis=-1)
