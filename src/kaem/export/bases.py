"""What several targets ask of banks of functions."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..bases import BSpline, Functions
from ..bases.bspline import DEGREE


def weights_of(functions: Functions) -> Float[np.ndarray, "Q P B"]:
    """Return the coefficients of a shared basis, those of the base activation last."""
    basis: Any = functions.basis
    weights = np.asarray(basis.coefficients)
    if functions.base_weight is None or functions.activation is None:
        return weights
    return np.concatenate([weights, np.asarray(functions.base_weight)[..., None]], axis=-1)


def knots_of(basis: BSpline) -> np.ndarray:
    """Return a spline's grid, with as many knots more at each end as it has degrees."""
    grid, steps = np.asarray(basis.grid, np.float32), np.arange(1, DEGREE + 1, dtype=np.float32)
    first, last = grid[:, 1:2] - grid[:, :1], grid[:, -1:] - grid[:, -2:-1]
    ends = grid[:, :1] - first * steps[::-1], grid[:, -1:] + last * steps
    return np.concatenate([ends[0], grid, ends[1]], axis=1)
