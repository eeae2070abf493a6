"""The paper's rivals: a VAE, a neural latent energy model and a diffusion model."""

from ..layers import Encoder, UNet
from ..lazy import submodules
from ..learning import Denoising, EvidenceBound
from ..models import MODELS
from ..priors import NeuralPrior, NormalPrior
from .diffusion import DDPM
from .neural_ebm import NeuralEBM
from .vae import VAE

MODELS |= {"vae": VAE, "neural-ebm": NeuralEBM, "ddpm": DDPM}

__all__ = [
    "DDPM",
    "VAE",
    "Denoising",
    "Encoder",
    "EvidenceBound",
    "NeuralEBM",
    "NeuralPrior",
    "NormalPrior",
    "UNet",
]

submodules(__name__)
