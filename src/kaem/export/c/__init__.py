"""The model in C99: in integers, and its twin in floating point."""

from .target import C

__all__ = ["C"]
