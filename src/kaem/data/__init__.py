"""Data: by name from the registry, or from any path."""

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
