"""Data: by name from the registry, or from any path."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .loading import load
from .registry import DATASETS, Dataset, cache_folder, fetch, find, search_folders, verify

__all__ = [
    "DATASETS",
    "Dataset",
    "cache_folder",
    "fetch",
    "find",
    "load",
    "search_folders",
    "verify",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
