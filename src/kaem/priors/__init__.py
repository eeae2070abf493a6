"""Latent priors that are products of one-dimensional densities, and how to sample them exactly."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from ._prior import AbstractPrior, Summary
from .inverse_transform import PaperTable, Table, open_uniform
from .mixture import MixturePrior
from .potential import Potential
from .reference import REFERENCES, Reference
from .univariate import UnivariatePrior

PRIORS = {"univariate": UnivariatePrior, "mixture": MixturePrior}

__all__ = [
    "PRIORS",
    "REFERENCES",
    "AbstractPrior",
    "MixturePrior",
    "PaperTable",
    "Potential",
    "Reference",
    "Summary",
    "Table",
    "UnivariatePrior",
    "open_uniform",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
