"""See what a model learned: figures, closed forms, reports."""

from typing import TYPE_CHECKING

from ..lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
