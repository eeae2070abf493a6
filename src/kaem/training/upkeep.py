"""What a KAEM needs between updates: room for its latents, and tables fine enough for its prior."""

import equinox as eqx
import jax.numpy as jnp

from ..model import KAEM, AbstractModel
from ..priors import REFERENCES
from .config import Config

_OUTSIDE = 1e-3  # share of posterior latents outside the domain that makes it too narrow
_WIDEST = 8  # times the first width: chains that roam further are not for the domain to follow


def upkeep(
    model: AbstractModel, metrics: dict[str, float], config: Config
) -> tuple[AbstractModel, list[str]]:
    """The model, its domain widened or its tables refined where `metrics` or their error ask for it.

    Also what was done, in words. The error of the tables is added to `metrics`.
    """
    notes: list[str] = []
    if not isinstance(model, KAEM):
        return model, notes
    prior = model.prior
    lo, hi = config.prior.domain or REFERENCES[config.prior.reference].domain
    width = float(jnp.max(jnp.diff(prior.domain)))
    roomy = config.prior.frozen or width >= _WIDEST * (hi - lo)
    if metrics.get("outside", 0.0) > _OUTSIDE and not roomy:
        prior = prior.widened()
        notes.append(
            f"{metrics['outside']:.2%} of the posterior latents were outside the prior's "
            f"domain; it is widened to [{float(jnp.min(prior.domain)):.4g}, "
            f"{float(jnp.max(prior.domain)):.4g}]"
        )
    if prior.inverse_transform != "paper":
        metrics["table_error"] = float(jnp.max(prior.table_error()))
        if metrics["table_error"] > config.prior.tolerance:
            cells = prior.cells
            prior = prior.refined(config.prior.tolerance)
            notes.append(
                f"tables refined from {cells} to {prior.cells} cells: their error had reached "
                f"{metrics['table_error']:.1e}"
            )
    return (eqx.tree_at(lambda m: m.prior, model, prior) if notes else model), notes
