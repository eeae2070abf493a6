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


def regrid(
    basis: Basis,
    samples: Float[Array, "P M"],
    ratio: float,
    bounds: Float[Array, "P 2"] | None = None,
) -> Basis:
    """The same functions on a grid adapted to `samples` (pinned to `bounds` if given)."""
    if not 0 < ratio <= 1:
        raise ValueError(f"the grid update ratio must be in (0, 1], got {ratio}.")
    x = np.asarray(samples, np.float64)
    limits = None if bounds is None else np.asarray(bounds, np.float64)
    grid = adaptive_grid(x, basis.grid.shape[1], ratio, limits)
    moved = eqx.tree_at(lambda b: b.grid, basis, jnp.asarray(grid, jnp.float32))

    # Fit where the samples are and, evenly, over the whole new range: nowhere is it let go.
    even = np.linspace(grid[:, 0], grid[:, -1], 8 * grid.shape[1], axis=1)
    quantiles = np.quantile(x, np.linspace(0, 1, 4 * grid.shape[1]), axis=1).T
    nodes = jnp.asarray(np.concatenate([even, quantiles], axis=1), jnp.float32)
    old, new = (features_on(b, nodes) for b in (basis, moved))
    coefficients = jnp.einsum("pbn,pna,qpa->qpb", least_squares(new), old, basis.coefficients)
    return eqx.tree_at(lambda b: b.coefficients, moved, coefficients)
