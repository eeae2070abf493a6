"""How good a model is: distances between sets of samples, log-likelihoods, diagnostics."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .diagnostics import (
    active_coordinates,
    effective_sample_size,
    importance_ess,
    posterior_diagnostics,
    r_hat,
)
from .features import Extractor, extract
from .frechet import Statistics, frechet_distance, statistics
from .infinity import Extrapolation, fid_infinity, kid_infinity
from .kernel import Estimate, kid, mmd
from .likelihood import LogLikelihood, log_likelihood
from .proxies import PrecisionRecall, ProxyFeatures, precision_recall, proxy_distance

__all__ = [
    "Estimate",
    "Extractor",
    "Extrapolation",
    "LogLikelihood",
    "PrecisionRecall",
    "ProxyFeatures",
    "Statistics",
    "active_coordinates",
    "effective_sample_size",
    "extract",
    "fid_infinity",
    "frechet_distance",
    "importance_ess",
    "kid",
    "kid_infinity",
    "log_likelihood",
    "mmd",
    "posterior_diagnostics",
    "precision_recall",
    "proxy_distance",
    "r_hat",
    "statistics",
]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
