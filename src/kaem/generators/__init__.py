"""Generators: latents to data."""

from ..lazy import submodules
from ..serialisation import know
from ._generator import AbstractGenerator
from .cnn import CNN
from .half import Half
from .kan import KAN

GENERATORS: dict[str, type[AbstractGenerator]] = {"kan": KAN, "cnn": CNN}
know(GENERATORS)

__all__ = ["CNN", "GENERATORS", "KAN", "AbstractGenerator", "Half"]

submodules(__name__)
