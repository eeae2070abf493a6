"""Latent priors that are products of one-dimensional densities, and how to sample them exactly."""

from ._prior import AbstractPrior, Summary
from .inverse_transform import PaperTable, Table
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
]
