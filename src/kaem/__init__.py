"""Kolmogorov-Arnold Energy Models: generative models whose latent prior is a product of learned
one-dimensional densities, sampled exactly in one pass."""

import importlib
from typing import TYPE_CHECKING, Any

from .lazy import submodules

if TYPE_CHECKING:
    from .baselines import DDPM as DDPM
    from .baselines import VAE as VAE
    from .baselines import Denoising as Denoising
    from .baselines import Encoder as Encoder
    from .baselines import EvidenceBound as EvidenceBound
    from .baselines import NeuralEBM as NeuralEBM
    from .baselines import NeuralPrior as NeuralPrior
    from .errors import UserError as UserError
    from .generators import CNN as CNN
    from .generators import KAN as KAN
    from .generators import AbstractGenerator as AbstractGenerator
    from .metrics import log_likelihood as log_likelihood
    from .model import KAEM as KAEM
    from .posterior import ImportanceSampling as ImportanceSampling
    from .posterior import Langevin as Langevin
    from .posterior import Thermodynamic as Thermodynamic
    from .priors import MixturePrior as MixturePrior
    from .priors import UnivariatePrior as UnivariatePrior
    from .serialisation import load as load
    from .serialisation import load_prior as load_prior
    from .serialisation import register as register
    from .training import fit as fit

__version__ = "0.1.0"

# Public names and where they live; imported on first use, so that `import kaem` is instant.
_PUBLIC = {
    "AbstractGenerator": "generators",
    "CNN": "generators",
    "DDPM": "baselines",
    "Denoising": "baselines",
    "Encoder": "baselines",
    "EvidenceBound": "baselines",
    "KAEM": "model",
    "KAN": "generators",
    "ImportanceSampling": "posterior",
    "Langevin": "posterior",
    "MixturePrior": "priors",
    "NeuralEBM": "baselines",
    "NeuralPrior": "baselines",
    "Thermodynamic": "posterior",
    "UnivariatePrior": "priors",
    "UserError": "errors",
    "VAE": "baselines",
    "fit": "training",
    "load": "serialisation",
    "load_prior": "serialisation",
    "log_likelihood": "metrics",
    "register": "serialisation",
}

__all__ = [*_PUBLIC, "__version__"]


_submodule = submodules(__name__, __path__)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"kaem.{_PUBLIC[name]}"), name)
    return _submodule(name)


def __dir__() -> list[str]:
    return __all__
