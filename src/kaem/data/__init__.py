"""Data: by name from the registry, or from any path."""

from ..cache import cache_folder
from ..lazy import submodules
from .loading import load
from .registry import DATASETS, Dataset, fetch, find, search_folders, verify

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

submodules(__name__)
