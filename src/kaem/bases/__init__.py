"""Univariate functions: the energies of the prior and the edges of the KAN generator."""

from ..lazy import submodules
from ..serialisation import know
from ._basis import AbstractBasis, LinearBasis, Start
from ._grid import features_on, transfer
from ._wavelet import Wavelet
from .bspline import BSpline
from .chebyshev import Chebyshev
from .closed_form import ClosedForm, ClosedForms
from .fourier import Fourier
from .functions import ACTIVATIONS, BASES, Functions
from .mexican_hat import MexicanHat
from .morlet import Morlet
from .rbf import RBF

know(BASES, Functions, ClosedForms)

__all__ = [
    "ACTIVATIONS",
    "BASES",
    "RBF",
    "AbstractBasis",
    "BSpline",
    "Chebyshev",
    "ClosedForm",
    "ClosedForms",
    "Fourier",
    "Functions",
    "LinearBasis",
    "MexicanHat",
    "Morlet",
    "Start",
    "Wavelet",
    "features_on",
    "transfer",
]

submodules(__name__)
