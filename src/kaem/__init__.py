"""Kolmogorov-Arnold Energy Models: generative models whose latent prior is a product of learned
one-dimensional densities, sampled exactly in one pass."""

import importlib
from typing import TYPE_CHECKING, Any

from .lazy import submodules

if TYPE_CHECKING:
    from .errors import UserError as UserError
    from .generators import CNN as CNN
    from .generators import KAN as KAN
    from .generators import AbstractGenerator as AbstractGenerator
    from .interpret.closed_forms import symbolic as symbolic
    from .interpret.closed_forms import with_closed_forms as with_closed_forms
    from .interpret.plotting import plot as plot
    from .interpret.report import report as report
    from .layers import DenseEncoder as DenseEncoder
    from .layers import Encoder as Encoder
    from .learning import AbstractLearner as AbstractLearner
    from .learning import Encoded as Encoded
    from .learning import ImportanceSampling as ImportanceSampling
    from .learning import Langevin as Langevin
    from .learning import Thermodynamic as Thermodynamic
    from .loading import load as load
    from .loading import load_prior as load_prior
    from .metrics import evaluate as evaluate
    from .metrics import log_likelihood as log_likelihood
    from .models import KAEM as KAEM
    from .observation import Lens as Lens
    from .priors import MixturePrior as MixturePrior
    from .priors import UnivariatePrior as UnivariatePrior
    from .run import Run as Run
    from .runs import align as align
    from .runs import sample as sample
    from .runs import settings_of as settings_of
    from .runs import train as train
    from .runs.comparing import compare as compare
    from .serialisation import register as register
    from .training import Adam as Adam
    from .training import Augmentation as Augmentation
    from .training import Grid as Grid
    from .training import Upkeep as Upkeep
    from .training import fit as fit

__version__ = "0.2.0"

# Rooms and their public names, imported on first use, so that `import kaem` is instant.
_ROOMS = {
    "errors": ("UserError",),
    "generators": ("CNN", "KAN", "AbstractGenerator"),
    "interpret.closed_forms": ("symbolic", "with_closed_forms"),
    "interpret.plotting": ("plot",),
    "interpret.report": ("report",),
    "layers": ("DenseEncoder", "Encoder"),
    "learning": (
        "AbstractLearner",
        "Encoded",
        "ImportanceSampling",
        "Langevin",
        "Thermodynamic",
    ),
    "loading": ("load", "load_prior"),
    "metrics": ("evaluate", "log_likelihood"),
    "models": ("KAEM",),
    "observation": ("Lens",),
    "priors": ("MixturePrior", "UnivariatePrior"),
    "run": ("Run",),
    "runs": ("align", "sample", "settings_of", "train"),
    "runs.comparing": ("compare",),
    "serialisation": ("register",),
    "training": ("Adam", "Augmentation", "Grid", "Upkeep", "fit"),
}
_PUBLIC = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_PUBLIC, "__version__"]

submodules(__name__)
_submodule = globals()["__getattr__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"kaem.{_PUBLIC[name]}"), name)
    return _submodule(name)


def __dir__() -> list[str]:
    return __all__
