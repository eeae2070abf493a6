"""What the Verilog files share: templates that are filled, and memories as lines of hexadecimal digits."""

import re

import numpy as np
from jaxtyping import Int


def filled(template: str, **values: object) -> str:
    """The template with `@key@` replaced by values; Verilog has braces and dollars of its own."""

    def value(match: re.Match[str]) -> str:
        return str(values[match[1]])

    return re.sub(r"@(\w+)@", value, template)


def module_source(template: str, name: str, **values: object) -> bytes:
    """A file with one module, whose template begins with what it is."""
    text = filled(template, name=name, **values).lstrip("\n")
    top, rest = text.split("\nmodule ", 1)
    made = "// Made by KAEM. Verilog-2005; reset is synchronous and active high.\n`default_nettype none\n\n"
    return f"{top}\n{made}module {rest}`default_nettype wire\n".encode()


def bits_of(low: int, high: int) -> int:
    """Of a signed number that reaches from `low` to `high`."""
    return 1 + max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0)


def index_bits(count: int) -> int:
    """Of a counter of so many things: at least one."""
    return max((count - 1).bit_length(), 1)


def memory(values: Int[np.ndarray, "..."], bits: int) -> bytes:
    """Words for `$readmemh`, negative ones in two's complement."""
    return packed([(values, bits)])


def packed(fields: list[tuple[Int[np.ndarray, "..."], int]]) -> bytes:
    """Words that hold several fields each, the first in the uppermost bits."""
    words = [0] * fields[0][0].size
    for values, bits in fields:
        mask = (1 << bits) - 1
        words = [
            word << bits | value & mask
            for word, value in zip(words, values.reshape(-1).tolist(), strict=True)
        ]
    digits = -(-sum(bits for _, bits in fields) // 4)
    return ("\n".join(f"{word:0{digits}x}" for word in words) + "\n").encode()
