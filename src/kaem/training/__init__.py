"""Training: settings, the loop, checkpoints and run folders."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .config import (
    Config,
    DataConfig,
    DDPMConfig,
    GeneratorConfig,
    GridConfig,
    ModelConfig,
    NeuralEBMConfig,
    OptimiserConfig,
    PosteriorConfig,
    PriorConfig,
    TrainingConfig,
    VAEConfig,
)
from .fitting import fit
from .loop import TrainingDiverged

__all__ = [
    "Config",
    "DDPMConfig",
    "DataConfig",
    "GeneratorConfig",
    "GridConfig",
    "ModelConfig",
    "NeuralEBMConfig",
    "OptimiserConfig",
    "PosteriorConfig",
    "PriorConfig",
    "TrainingConfig",
    "TrainingDiverged",
    "VAEConfig",
    "fit",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
