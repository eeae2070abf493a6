"""Models as tables, C, HLS, Verilog and ONNX, verified against an integer reference."""

from .quantised import Quantised, quantise

__all__ = ["Quantised", "quantise"]
