"""Benchmarks: ratios measured side by side in one run."""

from typing import TYPE_CHECKING

from ..lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
