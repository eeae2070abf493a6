"""The model for high-level synthesis."""

from .target import Hls

__all__ = ["Hls"]
