"""See what a model learned: figures, closed forms, reports."""

from ..lazy import submodules

submodules(__name__)
