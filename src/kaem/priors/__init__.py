"""Latent priors that are products of one-dimensional densities, and how to sample them exactly."""

from .inverse_transform import PaperTable, Table
from .reference import REFERENCES, Reference
from .univariate import Summary, UnivariatePrior

__all__ = ["REFERENCES", "PaperTable", "Reference", "Summary", "Table", "UnivariatePrior"]
