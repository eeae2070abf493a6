"""Training: settings, the loop, checkpoints and run folders."""

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
from .loop import TrainingDiverged, fit

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
