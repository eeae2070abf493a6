"""Training: one update, the loop, `fit`, checkpoints."""

from ..lazy import submodules
from .augmentation import Augmentation
from .fitting import fit
from .optimiser import Adam, averaging
from .plan import Plan, TrainingDiverged
from .upkeep import Grid, Upkeep

__all__ = ["Adam", "Augmentation", "Grid", "Plan", "TrainingDiverged", "Upkeep", "averaging", "fit"]

submodules(__name__)
