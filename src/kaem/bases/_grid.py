r"""Least-squares grid updating: move the grid to the samples, keep the function.

Both the old and the new curve are linear in their coefficients, so the refit is one small
matrix per input, whatever the number of outputs: with basis matrices $B$ (old grid) and $B'$
(new grid) on the same points, $c' = (B'^\top B' + \lambda I)^{-1} B'^\top B\, c$.
"""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._basis import LinearBasis

Basis = TypeVar("Basis", bound=LinearBasis)
_LEAST_MOVE = 1 / 8  # of a grid towards its goal
_RIDGE = 1e-9  # relative to the mean diagonal of the Gram matrix, solved in float64


@eqx.filter_jit
def features_on(basis: LinearBasis, nodes: Float[Array, "P N"]) -> Float[Array, "P N B"]:
    """The basis functions of every input on its nodes."""
    return jax.vmap(basis.features, in_axes=1, out_axes=1)(nodes)


def least_squares(features: Float[Array, "P N B"]) -> Float[Array, "P B N"]:
    """The ridge pseudo-inverse of each basis matrix, in float64 on the host."""
    matrix = np.asarray(features, np.float64)
    gram = matrix.swapaxes(1, 2) @ matrix
    ridge = _RIDGE * np.trace(gram, axis1=1, axis2=2) / gram.shape[-1]
    gram = gram + ridge[:, None, None] * np.eye(gram.shape[-1])
    return jnp.asarray(np.linalg.solve(gram, matrix.swapaxes(1, 2)), jnp.float32)


def adaptive_grid(
    samples: Float[np.ndarray, "P M"],
    points: int,
    ratio: float,
    bounds: Float[np.ndarray, "P 2"] | None,
) -> Float[np.ndarray, "P G"]:
    """`ratio` parts of a uniform grid and `1 - ratio` parts of the samples' quantiles."""
    adaptive = np.quantile(samples, np.linspace(0, 1, points), axis=1).T
    if bounds is None:
        # Points of the next batch may lie a little beyond those of this one.
        margin = 0.05 * np.ptp(samples, axis=1) + 1e-3
        bounds = np.stack([samples.min(axis=1) - margin, samples.max(axis=1) + margin], axis=1)
    adaptive[:, 0], adaptive[:, -1] = bounds[:, 0], bounds[:, 1]
    uniform = np.linspace(bounds[:, 0], bounds[:, 1], points, axis=1)
    return ratio * uniform + (1 - ratio) * adaptive


def _nodes(basis: LinearBasis) -> int:
    """How many points of a line fix the coefficients safely."""
    return 8 * basis.coefficients.shape[-1]


def transfer(basis: LinearBasis, other: LinearBasis) -> Float[Array, "P B' B"]:
    """Of each input, the matrix that makes coefficients of `other` of those of `basis`."""
    lo = np.minimum(basis.grid[:, 0], other.grid[:, 0])
    hi = np.maximum(basis.grid[:, -1], other.grid[:, -1])
    nodes = jnp.linspace(jnp.asarray(lo), jnp.asarray(hi), _nodes(basis), axis=1)
    return least_squares(features_on(other, nodes)) @ features_on(basis, nodes)


def regrid(
    basis: Basis,
    samples: Float[Array, "P M"],
    ratio: float,
    bounds: Float[Array, "P 2"] | None = None,
    change: float | None = 0.01,
) -> Basis:
    """The same functions on a grid adapted to `samples` (pinned to `bounds` if given).

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
        moved = eqx.tree_at(lambda b: b.grid, basis, jnp.asarray(grid, jnp.float32))
        found, changed = _refitted(basis, moved, quantiles)
        too_much = (changed > (np.inf if change is None else change)) & (share[:, 0] > 0)
        if not too_much.any():
            break
        share[too_much] = np.where(share[too_much] > _LEAST_MOVE, share[too_much] / 2, 0)
    stay = jnp.asarray(share == 0)
    grids = jnp.where(stay, basis.grid, found.grid)
    coefficients = jnp.where(stay, basis.coefficients, found.coefficients)
    return eqx.tree_at(lambda b: (b.grid, b.coefficients), found, (grids, coefficients))


def _refitted(
    basis: Basis, moved: Basis, where: Float[np.ndarray, "P N"]
) -> tuple[Basis, Float[np.ndarray, " P"]]:
    """`moved` with the functions of `basis`, and how much those of each input changed.

    They are fitted `where` the samples are and, evenly, over the whole new range: nowhere are they
    let go. Changes are relative to how much the functions vary over the samples.
    """
    grid = np.asarray(moved.grid, np.float64)
    even = np.linspace(grid[:, 0], grid[:, -1], _nodes(basis), axis=1)
    nodes = jnp.asarray(np.concatenate([where, even], axis=1), jnp.float32)
    old, new = (features_on(b, nodes) for b in (basis, moved))
    coefficients = jnp.einsum("pbn,pna,qpa->qpb", least_squares(new), old, basis.coefficients)
    seen = where.shape[1]
    values = jnp.einsum("pna,qpa->qpn", old[:, :seen], basis.coefficients)
    gaps = jnp.einsum("pna,qpa->qpn", new[:, :seen], coefficients) - values
    spread = values - jnp.mean(values, axis=-1, keepdims=True)
    ratio = jnp.sum(gaps**2, axis=(0, 2)) / jnp.maximum(jnp.sum(spread**2, axis=(0, 2)), 1e-12)
    fitted = eqx.tree_at(lambda b: b.coefficients, moved, coefficients)
    return fitted, np.sqrt(np.asarray(ratio))
