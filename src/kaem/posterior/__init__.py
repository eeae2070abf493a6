"""Posterior inference: which latents explain a data point."""

from .importance import ImportanceInfo, ImportanceSampling
from .resampling import RESAMPLERS

__all__ = ["RESAMPLERS", "ImportanceInfo", "ImportanceSampling"]
