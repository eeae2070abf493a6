r"""Cubic B-splines by the Cox-de Boor recursion, on a grid extended by three knots at each end."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array
from ..methods import FIXED
from ._basis import LinearBasis, Start, small_curve_coefficients, uniform_grid

DEGREE = 3


class BSpline(LinearBasis):
    """Cubic splines: twice continuously differentiable, locally supported."""

    grid: Float[Array, "P G"] = eqx.field(metadata=FIXED)
    coefficients: Float[Array, "Q P B"]

    def __check_init__(self) -> None:
        if self.coefficients.shape[-1] != self.grid.shape[-1] - 1 + DEGREE:
            raise ValueError(
                f"{self.grid.shape[-1]} knots make {self.grid.shape[-1] - 1 + DEGREE} cubic splines, got "
                f"{self.coefficients.shape[-1]} coefficients."
            )

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        basis = cls(
            grid=uniform_grid(inputs, start.size + 1, start.interval),
            coefficients=as_array(np.zeros((outputs, inputs, start.size + DEGREE))),
        )
        coefficients = small_curve_coefficients(basis, rng, start)
        return eqx.tree_at(lambda b: b.coefficients, basis, coefficients)

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        grid = jax.lax.stop_gradient(self.grid)
        first, last = grid[:, 1:2] - grid[:, :1], grid[:, -1:] - grid[:, -2:-1]
        steps = jnp.arange(1, DEGREE + 1, dtype=grid.dtype)
        knots = jnp.concatenate(
            [grid[:, :1] - first * steps[::-1], grid, grid[:, -1:] + last * steps], axis=1
        )
        x = x[:, None]
        b = ((x >= knots[:, :-1]) & (x < knots[:, 1:])).astype(x.dtype)
        for k in range(1, DEGREE + 1):
            left = (x - knots[:, : -k - 1]) / (knots[:, k:-1] - knots[:, : -k - 1])
            right = (knots[:, k + 1 :] - x) / (knots[:, k + 1 :] - knots[:, 1:-k])
            b = left * b[:, :-1] + right * b[:, 1:]
        return b
