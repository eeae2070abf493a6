"""Text: templates, and numbers in C as names, types that hold them, and arrays."""

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..errors import UserError

_WIDTH = 100
_TYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64")

# Words of C and Verilog, and headers that a file of the same name would hide.
_TAKEN = """
    assert auto begin bool break case char const continue complex ctype default do double else end enum errno
    extern fenv float for goto if initial inline input int inttypes limits locale long main math module output reg
    register return setjmp short signal signed sizeof static stdarg stdbool stddef stdint stdio stdlib string struct
    switch time typedef union unsigned void volatile wchar while wire
"""


def template(module: str, file: str) -> str:
    """Return a template: a file in the folder `templates` beside the `__file__` of a module."""
    return (Path(module).parent / "templates" / file).read_text("utf8")


def fill(module: str, file: str, /, *given: Mapping[str, Any], **values: Any) -> str:
    """Return a template of `module` with `${key}` replaced by values."""
    return Template(template(module, file)).substitute(*given, **values)


def identifier(name: str) -> str:
    """Return the name, if C and Verilog can have it."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name) is None or name.lower() in _TAKEN.split():
        raise UserError(
            f"the name {name!r} cannot be that of a C function and a header; choose a letter followed by "
            "letters, digits and underscores, at most 32 in all, and no word of C or its library."
        )
    return name


def smallest(values: Any) -> str:
    """Return the smallest type of C that holds all values; a signed one for anything that is signed."""
    values = np.asarray(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    limits = ((name, np.iinfo(name)) for name in _TYPES)
    return next(f"{name}_t" for name, limit in limits if limit.min <= low and high <= limit.max)


def signed(bound: int, least: int = 16) -> str:
    """Return the first type of at least `least` bits that holds numbers up to `bound` of either sign."""
    return next(
        f"int{bits}_t" for bits in (16, 32, 64) if bits >= least and bound < 1 << (bits - 1)
    )


def array(name: str, values: np.ndarray, kind: str | None = None) -> str:
    """Return a constant array of C, in rows as its last axis is."""
    sizes = "".join(f"[{size}]" for size in values.shape)
    kind = smallest(values) if kind is None else kind
    return f"static const {kind} {name}{sizes} = {_braces(values)};\n"


def _braces(values: np.ndarray) -> str:
    if values.ndim > 1:
        return "{\n" + ",\n".join(_braces(part) for part in values) + "}"
    if values.dtype == np.float32:
        words = [number(value) for value in values]
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


def number(value: float | np.float32) -> str:
    """Return nine digits, which bring a float32 back exactly."""
    digits = f"{value:.9g}"
    return digits + ("f" if any(mark in digits for mark in ".e") else ".0f")
