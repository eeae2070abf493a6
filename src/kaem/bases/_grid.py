r"""Least-squares grid updating: move the grid to the samples, keep the function.

Both the old and the new curve are linear in their coefficients, so the refit is one small
matrix per input, whatever the number of outputs: with basis matrices $B$ (old grid) and $B'$
(new grid) on the same points, $c' = (B'^\top B' + \lambda I)^{-1} B'^\top B\, c$.
"""

from typing import TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array

if TYPE_CHECKING:
    from ._basis import LinearBasis

Basis = TypeVar("Basis", bound="LinearBasis")
Samples = Float[Array | np.ndarray, "P M"]
Bounds = Float[Array, "P 2"] | None
_LEAST_MOVE = 1 / 8  # of a grid towards its goal
_RIDGE = 1e-9  # relative to the mean diagonal of the Gram matrix, solved in float64


@eqx.filter_jit
def _features_on(basis: "LinearBasis", nodes: Float[Array, "P N"]) -> Float[Array, "P N B"]:
    return jax.vmap(basis.features, in_axes=1, out_axes=1)(nodes)


def features_on(
    basis: "LinearBasis", nodes: Float[Array | np.ndarray, "P N"]
) -> Float[np.ndarray, "P N B"]:
    """Return the basis functions of every input on its nodes, in float64 on the host."""
    return np.asarray(_features_on(basis, as_array(nodes)), np.float64)


def least_squares(matrix: Float[np.ndarray, "P N B"]) -> Float[np.ndarray, "P B N"]:
    """Return the ridge pseudo-inverse of each basis matrix, in float64."""
    gram = matrix.swapaxes(1, 2) @ matrix
    ridge = _RIDGE * np.trace(gram, axis1=1, axis2=2) / gram.shape[-1]
    gram = gram + ridge[:, None, None] * np.eye(gram.shape[-1])
    return np.linalg.solve(gram, matrix.swapaxes(1, 2))


def adaptive_grid(
    samples: np.ndarray, points: int, ratio: float, bounds: Float[np.ndarray, "P 2"] | None
) -> Float[np.ndarray, "P G"]:
    """Return `ratio` parts of a uniform grid and `1 - ratio` parts of the samples' quantiles."""
    adaptive = np.quantile(samples, np.linspace(0, 1, points), axis=1).T
    if bounds is None:
        # Points of the next batch may lie a little beyond those of this one.
        margin = 0.05 * np.ptp(samples, axis=1) + 1e-3
        bounds = np.stack([samples.min(axis=1) - margin, samples.max(axis=1) + margin], axis=1)
    adaptive[:, 0], adaptive[:, -1] = bounds[:, 0], bounds[:, 1]
    uniform = np.linspace(bounds[:, 0], bounds[:, 1], points, axis=1)
    return ratio * uniform + (1 - ratio) * adaptive


def _nodes(basis: "LinearBasis") -> int:
    """How many points of a line fix the coefficients safely."""
    return 8 * basis.coefficients.shape[-1]


def transfer(basis: "LinearBasis", other: "LinearBasis") -> Float[np.ndarray, "P B' B"]:
    """Return, of each input, the matrix that makes coefficients of `other` of those of `basis`."""
    grids = [np.asarray(grid) for grid in (basis.grid, other.grid)]
    lo = np.minimum(*(grid[:, 0] for grid in grids))
    hi = np.maximum(*(grid[:, -1] for grid in grids))
    nodes = np.linspace(lo, hi, _nodes(basis), axis=1)
    return least_squares(features_on(other, nodes)) @ features_on(basis, nodes)


def regrid(
    basis: Basis, samples: Samples, ratio: float, bounds: Bounds, change: float | None
) -> Basis:
    """Return the same functions on a grid adapted to `samples` (pinned to `bounds` if given).

    Where the functions of an input would change by a larger share than `change`, its grid moves
    only half as far, and so on; after four halvings it stays. With None they may change at will, as
    new functions do, which have nothing to lose yet.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"the grid update ratio must be in (0, 1], got {ratio}.")
    x = np.asarray(samples, np.float64)
    limits = None if bounds is None else np.asarray(bounds, np.float64)
    start = np.asarray(basis.grid, np.float64)
    goal = adaptive_grid(x, start.shape[1], ratio, limits)
    quantiles = np.quantile(x, np.linspace(0, 1, _nodes(basis)), axis=1).T
    found, share = basis, np.ones((len(x), 1))
    while True:
        grid = start + share * (goal - start)
        moved = eqx.tree_at(lambda b: b.grid, basis, as_array(grid))
        found, changed = _refitted(basis, moved, quantiles)
        too_much = (changed > (np.inf if change is None else change)) & (share[:, 0] > 0)
        if not too_much.any():
            break
        share[too_much] = np.where(share[too_much] > _LEAST_MOVE, share[too_much] / 2, 0)
    stay = share == 0
    grids = np.where(stay, basis.grid, found.grid)
    coefficients = np.where(stay, basis.coefficients, found.coefficients)
    arrays = tuple(map(as_array, (grids, coefficients)))
    return eqx.tree_at(lambda b: (b.grid, b.coefficients), found, arrays)


def _refitted(
    basis: Basis, moved: Basis, where: Float[np.ndarray, "P N"]
) -> tuple[Basis, Float[np.ndarray, " P"]]:
    """Return `moved` with the functions of `basis`, and how much those of each input changed.

    They are fitted `where` the samples are and, evenly, over the whole new range: nowhere are they
    let go. Changes are relative to how much the functions vary over the samples.
    """
    grid = np.asarray(moved.grid, np.float64)
    even = np.linspace(grid[:, 0], grid[:, -1], _nodes(basis), axis=1)
    nodes = np.concatenate([where, even], axis=1)
    old, new = (features_on(b, nodes) for b in (basis, moved))
    before = np.asarray(basis.coefficients, np.float64).transpose(1, 2, 0)  # [P, B, Q]
    after = (least_squares(new) @ (old @ before)).astype(np.float32)
    seen = where.shape[1]
    values = old[:, :seen] @ before
    gaps = new[:, :seen] @ after.astype(np.float64) - values
    spread = values - values.mean(axis=1, keepdims=True)
    ratio = np.sum(gaps**2, axis=(1, 2)) / np.maximum(np.sum(spread**2, axis=(1, 2)), 1e-12)
    fitted = eqx.tree_at(lambda b: b.coefficients, moved, as_array(after.transpose(2, 0, 1)))
    return fitted, np.sqrt(ratio)
