"""Closed forms of learned densities: found, measured, printed, and put back into the model."""

from ...lazy import submodules
from .fits import Fit, Fits, Of, family, fit_places, fit_prior, symbolic_prior
from .records import from_json, read_fits, to_json
from .writing import Symbolic, symbolic, with_closed_forms

__all__ = [
    "Fit",
    "Fits",
    "Of",
    "Symbolic",
    "family",
    "fit_places",
    "fit_prior",
    "from_json",
    "read_fits",
    "symbolic",
    "symbolic_prior",
    "to_json",
    "with_closed_forms",
]

submodules(__name__)
