"""Univariate functions: the energies of the prior and the edges of the KAN generator."""

from .bspline import BSpline
from .chebyshev import Chebyshev
from .closed_form import ClosedForm, ClosedForms
from .fourier import Fourier
from .functions import ACTIVATIONS, BASES, Functions
from .mexican_hat import MexicanHat
from .morlet import Morlet
from .rbf import RBF

__all__ = [
    "ACTIVATIONS",
    "BASES",
    "RBF",
    "BSpline",
    "Chebyshev",
    "ClosedForm",
    "ClosedForms",
    "Fourier",
    "Functions",
    "MexicanHat",
    "Morlet",
]
