"""Runs: the folder, training into it, what it would be, and runs side by side."""

from ..lazy import submodules
from .aligning import align
from .folder import RunFolder
from .planning import dry_run, render
from .resolve import settings_of
from .sampling import draws, sample
from .session import Outcome, Watcher
from .training import train

__all__ = [
    "Outcome",
    "RunFolder",
    "Watcher",
    "align",
    "draws",
    "dry_run",
    "render",
    "sample",
    "settings_of",
    "train",
]

submodules(__name__)
