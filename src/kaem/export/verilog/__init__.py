"""The model in Verilog."""

from .target import Verilog

__all__ = ["Verilog"]
