"""What a model is, and KAEM: prior + generator + observation noise."""

from ..lazy import submodules
from ..serialisation import know
from ._latent import LatentModel
from ._model import AbstractModel, as_float
from .kaem import KAEM

MODELS: dict[str, type[AbstractModel]] = {"kaem": KAEM}
know(MODELS)

__all__ = ["KAEM", "MODELS", "AbstractModel", "LatentModel", "as_float"]

submodules(__name__)
