"""Estimates of log p(x), and the driver that takes data through them."""

from ...lazy import submodules
from .driver import LogLikelihood, log_likelihood
from .estimators import ESTIMATORS, Estimator

__all__ = ["ESTIMATORS", "Estimator", "LogLikelihood", "log_likelihood"]

submodules(__name__)
