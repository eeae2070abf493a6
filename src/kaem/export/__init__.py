"""Models as tables, C, HLS, Verilog and ONNX, verified against an integer reference."""

from typing import TYPE_CHECKING

from ..lazy import submodules
from .quantised import Quantised, quantise

__all__ = ["Quantised", "quantise"]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, __path__)
