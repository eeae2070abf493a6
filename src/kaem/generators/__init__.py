"""Generators: latents to data."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from ._generator import AbstractGenerator
from .cnn import CNN
from .kan import KAN

GENERATORS: dict[str, type[AbstractGenerator]] = {"kan": KAN, "cnn": CNN}

__all__ = ["CNN", "GENERATORS", "KAN", "AbstractGenerator"]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
