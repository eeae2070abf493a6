"""The model as ONNX graphs."""

from .target import Onnx

__all__ = ["Onnx"]
