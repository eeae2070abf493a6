"""What the Verilog files share: templates that are filled, and memories as lines of hexadecimal digits."""

import re

import numpy as np
from jaxtyping import Int

from .. import text


def filled(template: str, **values: object) -> str:
    """Return the template with `@key@` replaced by values; Verilog has braces and dollars of its own.

    Of a width `X_bits`, `@X_top@` is its uppermost bit; of a count `Xs`, `@last_X@` is its last index.
    """

    def value(match: re.Match[str]) -> str:
        key = match[1]
        if key.endswith("_top"):
            return str(int(str(values[f"{key[:-4]}_bits"])) - 1)
        if key.startswith("last_"):
            return str(int(str(values[f"{key[5:]}s"])) - 1)
        return str(values[key])

    return re.sub(r"@(\w+)@", value, template)


def template(file: str) -> str:
    """Return a template of Verilog."""
    return text.template(__file__, file)


def module_source(module: str, name: str, **values: object) -> bytes:
    """Return the file of a module, whose template begins with what it is."""
    sums = template("sums.v").rstrip()
    filled_in = filled(template(f"{module}.v"), name=name, sums=sums, **values).lstrip("\n")
    top, rest = filled_in.split("\nmodule ", 1)
    head = "// Made by KAEM. Verilog-2005; reset is synchronous and active high.\n`default_nettype none\n\n"
    return f"{top}\n{head}module {rest}`default_nettype wire\n".encode()


def bits_of(low: int, high: int) -> int:
    """Return the bits of a signed number that reaches from `low` to `high`."""
    return 1 + max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0)


def index_bits(count: int) -> int:
    """Return the bits of a counter of so many things: at least one."""
    return max((count - 1).bit_length(), 1)


def memory(values: Int[np.ndarray, "..."], bits: int) -> bytes:
    """Return words for `$readmemh`, negative ones in two's complement."""
    return packed([(values, bits)])


def packed(fields: list[tuple[Int[np.ndarray, "..."], int]]) -> bytes:
    """Return words that hold several fields each, the first in the uppermost bits."""
    words = [0] * fields[0][0].size
    for values, bits in fields:
        mask = (1 << bits) - 1
        words = [
            word << bits | value & mask
            for word, value in zip(words, values.reshape(-1).tolist(), strict=True)
        ]
    digits = -(-sum(bits for _, bits in fields) // 4)
    return ("\n".join(f"{word:0{digits}x}" for word in words) + "\n").encode()
