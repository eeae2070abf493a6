"""Inference of latents: kernels, tempering, annealing, importance weights."""

from ..lazy import submodules
from .kernels import MALA, SAMPLERS, SGLD, ULA, AbstractSampler
from .resampling import RESAMPLERS
from .tempering import Population, swap

__all__ = ["MALA", "RESAMPLERS", "SAMPLERS", "SGLD", "ULA", "AbstractSampler", "Population", "swap"]

submodules(__name__)
