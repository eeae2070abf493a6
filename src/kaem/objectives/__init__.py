"""Training criteria, and the temperatures of the thermodynamic one."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .criteria import maximum_likelihood, thermodynamic, trapezoid_weights
from .schedules import balanced, checked_ladder, cosine_exponent, power_law

__all__ = [
    "balanced",
    "checked_ladder",
    "cosine_exponent",
    "maximum_likelihood",
    "power_law",
    "thermodynamic",
    "trapezoid_weights",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
