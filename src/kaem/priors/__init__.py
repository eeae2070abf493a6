"""Latent priors that are products of one-dimensional densities, and how to sample them exactly."""

from ..lazy import submodules
from ..serialisation import know
from ._latent import LatentPrior, Start
from ._prior import AbstractPrior, Summary
from .aligned import AlignedPrior
from .inverse_transform import PaperTable, Table, open_uniform
from .mixture import MixturePrior
from .neural import NeuralPrior
from .normal import NormalPrior
from .potential import Potential
from .reference import REFERENCES, Reference
from .univariate import UnivariatePrior

PRIORS: dict[str, type[LatentPrior]] = {
    "univariate": UnivariatePrior,
    "mixture": MixturePrior,
    "normal": NormalPrior,
    "neural": NeuralPrior,
}
know(PRIORS, AlignedPrior)  # the latter is made of a prior, not of settings

__all__ = [
    "PRIORS",
    "REFERENCES",
    "AbstractPrior",
    "AlignedPrior",
    "LatentPrior",
    "MixturePrior",
    "NeuralPrior",
    "NormalPrior",
    "PaperTable",
    "Potential",
    "Reference",
    "Start",
    "Summary",
    "Table",
    "UnivariatePrior",
    "open_uniform",
]

submodules(__name__)
