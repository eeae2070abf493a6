"""The InceptionV3 of published distances: network, weights, files that hold them, and features."""

from ...lazy import submodules
from .features import Extractor, extract

__all__ = ["Extractor", "extract"]

submodules(__name__)
