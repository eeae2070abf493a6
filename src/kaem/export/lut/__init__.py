"""The prior alone, as look-up tables."""

from .target import Lut

__all__ = ["Lut"]
