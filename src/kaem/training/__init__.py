"""Training: one update, the loop, `fit`, checkpoints."""

from ..lazy import submodules
from .augmentation import Augmentation
from .fitting import fit
from .loop import Plan, TrainingDiverged
from .optimiser import Adam, averaging
from .upkeep import Grid, Upkeep

__all__ = ["Adam", "Augmentation", "Grid", "Plan", "TrainingDiverged", "Upkeep", "averaging", "fit"]

submodules(__name__)
