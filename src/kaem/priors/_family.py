"""New families of one-dimensional densities, or what is wrong with what was asked for."""

from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ..bases import Functions
from ..initialise import as_array
from .reference import REFERENCES

MAX_CELLS = 16384


def check_family(prior: Any) -> None:
    """Raise unless a prior's fields fit together, as those of a file may not."""
    shape, cells = prior.shape, prior.cells
    if prior.inverse_transform not in prior.transforms:
        raise ValueError(
            f"inverse_transform must be one of {', '.join(prior.transforms)}, got "
            f"{prior.inverse_transform!r}."
        )
    rows = (shape[1] if len(shape) == 2 else 1, 2)
    if prior.energies.shape[: len(shape)] != shape or prior.domain.shape != rows:
        raise ValueError(
            f"a prior of shape {shape} has energies of shape {prior.energies.shape} and a domain of "
            f"shape {prior.domain.shape}, which do not fit."
        )
    if not isinstance(cells, int) or not 4 <= cells <= MAX_CELLS or cells % 2:
        raise ValueError(f"cells must be an even number from 4 to {MAX_CELLS}, got {cells!r}.")
    if prior.reference not in REFERENCES:
        raise ValueError(f"unknown reference {prior.reference!r}.")
    check_domain(np.asarray(prior.domain), prior.reference)


def check_domain(domain: Float[np.ndarray, "R 2"], reference: str) -> None:
    """Raise unless float32 can tell the ends of every domain apart, within the reference's support."""
    if not np.isfinite(domain).all():
        raise ValueError(f"non-finite numbers in the domain of a prior, got {domain.tolist()}.")
    low, high = REFERENCES[reference].support
    lo, hi = domain.T.astype(float)
    apart = (hi - lo) > 1e-4 * np.maximum(np.abs(lo), np.abs(hi))
    if not (apart.all() and (lo >= low).all() and (hi <= high).all()):
        raise ValueError(
            f"the domain of a {reference} prior must be increasing, within {(low, high)}, and not "
            f"too narrow for float32 to divide, got {domain.tolist()}."
        )


def new_family(
    energies: tuple[int, int],
    shape: tuple[int, ...],
    *,
    key: PRNGKeyArray,
    reference: str,
    domain: tuple[float, float] | None,
    cells: int,
    inverse_transform: str,
    **functions: Any,
) -> dict[str, Any]:
    """Return the fields of a prior with new `energies` (Q, P), or say what is wrong with the arguments."""
    if reference not in REFERENCES:
        raise ValueError(f"unknown reference {reference!r}; choose one of {', '.join(REFERENCES)}.")
    lo, hi = REFERENCES[reference].domain if domain is None else domain
    check_domain(np.array([[lo, hi]], np.float32), reference)
    q, p = energies
    rows = p if len(shape) == 2 else 1
    return {
        "energies": Functions.init(p, q, key=key, interval=(lo, hi), **functions),
        "domain": as_array(np.tile([lo, hi], (rows, 1))),
        "cached": None,
        "shape": shape,
        "reference": reference,
        "cells": cells,
        "inverse_transform": inverse_transform,
    }
