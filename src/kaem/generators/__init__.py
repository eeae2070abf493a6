"""Generators: latents to data."""

from .kan import KAN

GENERATORS = {"kan": KAN}

__all__ = ["GENERATORS", "KAN"]
