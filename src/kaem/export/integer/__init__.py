"""The model in integers: the reference that every integer target equals to the bit."""

from .quantised import Quantised, quantise
from .target import IntegerTarget

__all__ = ["IntegerTarget", "Quantised", "quantise"]
