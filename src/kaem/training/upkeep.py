"""What a KAEM needs between updates: tables fine enough for its prior, and grids where its latents are."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ..bases import Functions, LinearBasis, transfer
from ..model import KAEM, AbstractModel
from ..priors import UnivariatePrior
from .config import GridConfig, PriorConfig

_CHANGE = 0.01  # of what the model makes, that a grid update may cost
_SQUARES = ("nu", "sum_of_squares")  # what optax calls running means of squared gradients


def upkeep(
    model: AbstractModel, metrics: dict[str, float], prior_settings: PriorConfig, chains: bool
) -> tuple[AbstractModel, list[str]]:
    """The model, its tables refined where their error asks for it, and what was done, in words.

    Errors are added to `metrics`; that of the score counts where `chains` follow it.
    """
    if not isinstance(model, KAEM) or model.prior.inverse_transform == "paper":
        return model, []
    prior, p = model.prior, prior_settings
    metrics["table_error"] = float(jnp.max(prior.table_error()))
    if chains:
        metrics["score_error"] = float(jnp.max(prior.score_error()))
    # A comparison that is false for NaN: an error nobody can tell is one to refine for, too.
    good = metrics["table_error"] <= p.tolerance
    if good and not metrics.get("score_error", 0.0) > p.score_tolerance:
        return model, []
    finer = prior.refined(p.tolerance, p.score_tolerance if chains else None)
    if finer.cells == prior.cells:
        return model, []
    error = (
        f"that of the score is {metrics['score_error']:.1%}"
        if good
        else f"it had reached {metrics['table_error']:.1e}"
    )
    note = f"tables refined from {prior.cells} to {finer.cells} cells for their error: {error}"
    return eqx.tree_at(lambda m: m.prior, model, finer), [note]


def regridded(
    model: Any, optimiser: Any, grid: GridConfig, key: PRNGKeyArray, step: int
) -> tuple[Any, Any]:
    """The same model on grids adapted to prior samples (Table hp-nist), and its optimiser's state."""
    if not isinstance(model, KAEM):
        return model, optimiser
    prior, generator = model.prior, model.generator
    z = prior.sample(key, grid.samples)
    change = _CHANGE if step > 0 else None  # a new model has nothing to lose yet
    if grid.prior and isinstance(prior, UnivariatePrior) and isinstance(prior.energies, Functions):
        prior = prior.regrid(z, grid.ratio, change)
    if grid.generator:
        generator = generator.regrid(z, grid.ratio, change)
    moved = eqx.tree_at(lambda m: (m.prior, m.generator), model, (prior, generator))
    return moved, _carried(optimiser, model, moved)


def _carried(optimiser: Any, before: Any, after: Any) -> Any:
    """Running means of gradients, in terms of the new coefficients.

    The old coefficients that make the same function are $c = R c'$, so a gradient becomes $R^\\top g$,
    and squared gradients, which are kept without their correlations, $(R^2)^\\top g^2$.
    """

    def bases(model: Any) -> dict[str, LinearBasis]:
        leaves = jax.tree_util.tree_leaves_with_path(
            model, is_leaf=lambda node: isinstance(node, LinearBasis)
        )
        return {
            jax.tree_util.keystr(path) + ".coefficients": leaf
            for path, leaf in leaves
            if isinstance(leaf, LinearBasis)
        }

    old, new = bases(before), bases(after)
    maps = {
        name: transfer(new[name], old[name])
        for name in old
        if not np.array_equal(old[name].grid, new[name].grid)
    }

    def carry(path: Any, leaf: Any) -> Any:
        keys = [getattr(key, "key", getattr(key, "name", None)) for key in path]
        matrix = next((maps[key] for key in keys if key in maps), None)
        if matrix is None or getattr(leaf, "ndim", 0) != 3:
            return leaf
        squares = any(key in _SQUARES for key in keys)
        return jnp.einsum("pab,qpa->qpb", matrix**2 if squares else matrix, leaf)

    return jax.tree_util.tree_map_with_path(carry, optimiser)
