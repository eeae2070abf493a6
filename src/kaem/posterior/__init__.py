"""Posterior expectations: importance sampling, Langevin chains, tempered populations."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .importance import ImportanceInfo, ImportanceSampling
from .langevin import Langevin
from .resampling import RESAMPLERS
from .samplers import MALA, SAMPLERS, SGLD, ULA
from .tempering import Population, swap
from .thermodynamic import Thermodynamic

__all__ = [
    "MALA",
    "RESAMPLERS",
    "SAMPLERS",
    "SGLD",
    "ULA",
    "ImportanceInfo",
    "ImportanceSampling",
    "Langevin",
    "Population",
    "Thermodynamic",
    "swap",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
