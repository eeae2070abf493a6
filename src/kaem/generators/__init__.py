"""Generators: latents to data."""

from ._generator import AbstractGenerator
from .cnn import CNN
from .kan import KAN

GENERATORS: dict[str, type[AbstractGenerator]] = {"kan": KAN, "cnn": CNN}

__all__ = ["CNN", "GENERATORS", "KAN", "AbstractGenerator"]
