r"""The prior in Verilog: a quantile in, a word out, one of each at every clock.

With $R$ bits of $u$ within a cell, linear reading is $(w_k\,2^R + (w_{k+1} - w_k)\,r + 2^{R-1}) \gg R$. Cells $k$ and
$k + 1$ are one even and one odd: two memories of half the size are read at once, and no bit is stored
twice. Segments whose cells hold fewer bits of $u$ shift $r$ to the left, which changes no result. The word behind the
last cell of a segment is a constant in logic, so that memories are powers of two.
"""

import numpy as np
from jaxtyping import Int

from ..integer.tables import U_BITS, Segment, Tables
from .text import filled, index_bits, memory, template


def _entry_words(tables: Tables) -> tuple[Int[np.ndarray, "L E"], Int[np.ndarray, "L S"]]:
    """Return words without those behind the segments, a power of two for each latent, and those."""
    every = tables.words.astype(np.int64)
    ends = [s.offset + (1 << s.cells) for s in tables.segments]
    parts = [every[:, s.offset : end] for s, end in zip(tables.segments, ends, strict=True)]
    return np.concatenate(parts, axis=1), every[:, ends if tables.interpolate else []]


def _bits(high: int, low: int) -> str:
    return f"s_tdata[{high}:{low}]"


def _decode(segments: tuple[Segment, ...], entry_bits: int, most: int) -> str:
    """Return wires `segment`, `entry`, `final_cell` and `fraction` of a quantile, the last segment first."""
    segment_bits = index_bits(len(segments))
    chosen: dict[str, list[str]] = {"segment": [], "entry": [], "final_cell": [], "fraction": []}
    lines, base, tests = [], 0, []
    for i, s in enumerate(segments):
        cells = _bits(s.span - 1, s.rest)
        prefix = entry_bits - s.cells
        entry = f"{{{prefix}'d{base >> s.cells}, {cells}}}" if prefix else cells
        fraction = [_bits(s.rest - 1, 0)] if s.rest else []
        fraction += [f"{most - s.rest}'d0"] if most > s.rest else []
        both = f"{{{', '.join(fraction)}}}" if len(fraction) > 1 else "".join(fraction)
        row = (f"{segment_bits}'d{i}", entry, f"&{cells}", both)
        for values, value in zip(chosen.values(), row, strict=True):
            values.append(value)
        base += 1 << s.cells
        if i:
            wide = U_BITS - s.span
            test = f"{_bits(U_BITS - 1, s.span)} == {wide}'d{s.start >> s.span}"
            lines.append(f"    wire in_segment_{i} = {test};")
            tests.append(f"in_segment_{i}")
    widths = {"segment": segment_bits, "entry": entry_bits, "fraction": most}
    for wire, values in chosen.items():
        if most == 0 and wire != "entry":
            continue  # read to the nearest
        # Later segments go before earlier ones.
        later = [f"{test} ? {value}" for test, value in zip(tests, values[1:], strict=True)]
        value = "\n        : ".join([*reversed(later), values[0]])
        span = "" if wire == "final_cell" else f"[{widths[wire] - 1}:0] "
        lines.append(f"    wire {span}{wire} = {value};")
    return "\n".join(lines)


def prior_files(tables: Tables, name: str) -> dict[str, bytes]:
    """Return the module NAME_prior and its memories."""
    words, ends = _entry_words(tables)
    latents, entries = words.shape
    most = max(s.rest for s in tables.segments) if tables.interpolate else 0
    entry_bits, latent_bits = entries.bit_length() - 1, index_bits(latents)
    half_bits, segment_bits = entry_bits - 1, index_bits(len(tables.segments))
    many = latents > 1
    address_bits = (latent_bits if many else 0) + entry_bits - (1 if most else 0)

    def place(entry: str) -> str:
        return f"{{latent, {entry}}}" if many else entry

    key_bits, product_bits = latent_bits + segment_bits, tables.bits + most + 2
    cases = [
        f"            {key_bits}'d{i << segment_bits | j}: behind = {tables.bits}'d{word};"
        for i, row in enumerate(ends.tolist())
        for j, word in enumerate(row)
    ]
    ignored = min(s.rest for s in tables.segments)
    values: dict[str, object] = {
        "unused": f"\n    // The bits within a cell.\n    wire unused = &{{1'b0, {_bits(ignored - 1, 0)}}};\n"
        if ignored
        else "",
        "name": name,
        "latents": latents,
        "entries": entries,
        "reading": "linearly" if most else "to the nearest",
        "addressing": "addressed uniformly"
        if len(tables.segments) == 1
        else "half of them for all of u and a quarter for each tail",
        "delay": 5 if most else 2,
        "word_bits": tables.bits,
        "latent_bits": latent_bits,
        "decode": _decode(tables.segments, entry_bits, most),
        "words": latents * entries // (2 if most else 1),
        "address_bits": address_bits,
        "place": place("entry"),
        "even_place": place("next_even"),
        "odd_place": place(f"entry[{entry_bits - 1}:1]"),
        "half_bits": half_bits,
        "half_zeros": f"{half_bits - 1}'d0, ",
        "entry_bits": entry_bits,
        "fraction_bits": most,
        "fraction_more": most + 1,
        "half": 1 << max(most - 1, 0),
        "product_bits": product_bits,
        "product_zeros": tables.bits + 2,
        "sum_bits": tables.bits + most,
        "key_bits": key_bits,
        "ends": "\n".join(cases),
    }
    reading = template("prior_linear.v" if most else "prior_nearest.v")
    source = filled(template("prior.v") + reading, **values)
    made = {f"{name}_prior.v": source.encode()}
    if most:
        made[f"{name}_prior_even.mem"] = memory(words[:, 0::2], tables.bits)
        made[f"{name}_prior_odd.mem"] = memory(words[:, 1::2], tables.bits)
    else:
        made[f"{name}_prior.mem"] = memory(words, tables.bits)
    return made
