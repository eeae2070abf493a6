"""Closed forms of learned densities: found, measured, printed, and put back into the model."""

from typing import TYPE_CHECKING

from ...lazy import submodules
from .fits import Fit, Fits, Of, family, fit_places, fit_prior, symbolic_prior
from .records import from_json, read_fits, to_json

__all__ = [
    "Fit",
    "Fits",
    "Of",
    "family",
    "fit_places",
    "fit_prior",
    "from_json",
    "read_fits",
    "symbolic_prior",
    "to_json",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
