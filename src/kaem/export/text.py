"""Integers as text: arrays of C in the smallest type that holds them, and bounds of sums."""

import math
import re
from typing import Any

import numpy as np

from ..errors import UserError
from .layers import COORDINATE_BITS, Dense, Kolmogorov, Upsample
from .quantised import Quantised

_WIDTH = 100
_TYPES = (
    ("uint8_t", 0, (1 << 8) - 1),
    ("int8_t", -(1 << 7), (1 << 7) - 1),
    ("uint16_t", 0, (1 << 16) - 1),
    ("int16_t", -(1 << 15), (1 << 15) - 1),
    ("int32_t", -(1 << 31), (1 << 31) - 1),
    ("int64_t", -(1 << 63), (1 << 63) - 1),
)


# Words of C and Verilog, and headers that a file of the same name would hide.
_TAKEN = frozenset(
    [
        "assert",
        "auto",
        "begin",
        "bool",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "complex",
        "ctype",
        "default",
        "do",
        "double",
        "else",
        "end",
        "enum",
        "errno",
        "extern",
        "fenv",
        "float",
        "for",
        "goto",
        "if",
        "initial",
        "inline",
        "input",
        "int",
        "inttypes",
        "limits",
        "locale",
        "long",
        "main",
        "math",
        "module",
        "output",
        "reg",
        "register",
        "return",
        "setjmp",
        "short",
        "signal",
        "signed",
        "sizeof",
        "static",
        "stdarg",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "string",
        "struct",
        "switch",
        "time",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "wchar",
        "while",
        "wire",
    ]
)


def identifier(name: str) -> str:
    """The name, if C and Verilog can have it."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name) is None or name.lower() in _TAKEN:
        raise UserError(
            f"the name {name!r} cannot be that of a C function and a header; choose a letter followed by "
            "letters, digits and underscores, at most 32 in all, and no word of C or its library."
        )
    return name


def smallest(values: Any) -> str:
    """The smallest type of C that holds all values; a signed one for anything that is signed."""
    values = np.asarray(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(name for name, least, most in _TYPES if least <= low and high <= most)


def signed(bound: int, least: int = 16) -> str:
    """The first type of at least `least` bits that holds numbers up to `bound` of either sign."""
    return next(
        f"int{bits}_t" for bits in (16, 32, 64) if bits >= least and bound < 1 << (bits - 1)
    )


def array(name: str, values: np.ndarray, kind: str | None = None) -> str:
    """A constant array of C, in rows as its last axis is."""
    sizes = "".join(f"[{size}]" for size in values.shape)
    kind = smallest(values) if kind is None else kind
    return f"static const {kind} {name}{sizes} = {_braces(values)};\n"


def _braces(values: np.ndarray) -> str:
    if values.ndim > 1:
        return "{\n" + ",\n".join(_braces(part) for part in values) + "}"
    if values.dtype == np.float32:
        words = [_float(value) for value in values]
    else:
        words = [str(value) for value in values.tolist()]
    lines, line = [], "{"
    for word in words:
        if len(line) + len(word) + 2 > _WIDTH:
            lines.append(line)
            line = ""
        line += f"{word},"
    lines.append(line[:-1] + "}")
    return "\n".join(lines)


def _float(value: np.float32) -> str:
    """Nine digits bring a float32 back exactly."""
    digits = f"{value:.9g}"
    return digits + ("f" if any(mark in digits for mark in ".e") else ".0f")


def sizes(q: Quantised, name: str) -> dict[str, Any]:
    """What templates say of a model as a whole."""
    guard, coordinates = name.upper(), len(q.sum.weights)
    made, size = "uint8_t", sum(q.bytes.values())
    codes = ""
    if q.sigmoid is None:
        made = "uint16_t"
        codes = "/* A code stands for LOW + (HIGH - LOW) * code / 65535. */\n"
        codes += f"#define {guard}_LOW ({q.lo!r})\n#define {guard}_HIGH ({q.hi!r})\n"
    return {
        "name": name,
        "guard": guard,
        "latents": len(q.tables.words),
        "Q": coordinates,
        "P": len(q.tables.words) // coordinates,
        "size": math.prod(q.data_shape),
        "shape": " x ".join(str(axis) for axis in q.data_shape),
        "pixel": made,
        "unit": "codes of 16 bits" if q.sigmoid is None else "bytes",
        "range": codes,
        "bytes": size,
        "kilobits": -(-size * 8 // 1024),
    }


def sum_bound(layer: Kolmogorov | Dense | Upsample, inputs: int) -> int:
    """What no sum of a layer exceeds, in whatever order, for inputs up to `inputs`."""
    bias = np.abs(layer.bias)
    if isinstance(layer, Kolmogorov):
        largest = np.abs(layer.tables).max(axis=1)  # of each function: cells are read between knots
        return int((np.sum(np.abs(layer.weights) * largest, axis=(1, 2)) + bias).max())
    if isinstance(layer, Dense):
        return int((np.abs(layer.weights).sum(axis=1) * (1 << (COORDINATE_BITS - 1)) + bias).max())
    # An output pixel sees every second row and column of the kernel; this is for all of them.
    return int((np.abs(layer.kernel).sum(axis=(0, 1, 2)) * inputs + bias).max())
