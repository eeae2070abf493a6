"""The paper's rivals: a VAE, a neural latent energy model and a diffusion model."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .diffusion import CLASSES as _DIFFUSION
from .diffusion import DDPM, Denoising
from .neural_ebm import CLASSES as _NEURAL
from .neural_ebm import NeuralEBM, NeuralPrior
from .vae import CLASSES as _VAE
from .vae import VAE, Encoder, EvidenceBound, NormalPrior

CLASSES: tuple[type, ...] = (*_VAE, *_NEURAL, *_DIFFUSION)

__all__ = [
    "CLASSES",
    "DDPM",
    "VAE",
    "Denoising",
    "Encoder",
    "EvidenceBound",
    "NeuralEBM",
    "NeuralPrior",
    "NormalPrior",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
