"""Training: settings, the loop, checkpoints and run folders."""

from .config import (
    Config,
    DataConfig,
    GeneratorConfig,
    GridConfig,
    OptimiserConfig,
    PosteriorConfig,
    PriorConfig,
    TrainingConfig,
)
from .loop import TrainingDiverged, fit

__all__ = [
    "Config",
    "DataConfig",
    "GeneratorConfig",
    "GridConfig",
    "OptimiserConfig",
    "PosteriorConfig",
    "PriorConfig",
    "TrainingConfig",
    "TrainingDiverged",
    "fit",
]
