"""The prior alone: tables as an archive of NumPy, as memory files of Verilog, and as a header of C."""

import io
import tempfile
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from . import tools
from .quantised import Quantised
from .tables import U_BITS, Segment, Tables
from .text import array, identifier

_HEADER = Template("""\
/* ${name}_tables.h: the prior of a Kolmogorov-Arnold energy model as look-up tables.
 *
 * ${latents} latents, latent i = q * ${P} + p for the coordinate q < ${Q} and its part p < ${P};
 * ${entries} words of ${bits} bits each, ${bytes} bytes in all. A word w stands for
 * z = ${name}_lo[i] + (${name}_hi[i] - ${name}_lo[i]) * w / ${top}.
 *
 *     uint16_t w = ${name}_look_up(i, u);      u: 16 random bits
 */
#ifndef ${guard}_TABLES_H
#define ${guard}_TABLES_H

#include <stdint.h>

${words}
${lo}
${hi}
${look_up}
#endif
""")

_LOOK_UP = Template("""\
/* The word of latent i at quantile u / 65536${how}. */
static inline uint16_t ${name}_look_up(int i, uint16_t u)
{
${segments}}
""")

_LINEAR = Template("""\
${indent}const uint32_t v = (uint32_t)u - ${start}u, within = v & ${mask}u;
${indent}const uint16_t *w = &${name}_words[i][${offset}u + (v >> ${rest})];
${indent}return (uint16_t)((w[0] * (${size}u - within) + w[1] * within + ${half}u) >> ${rest});
""")

_NEAREST = Template("""\
${indent}return ${name}_words[i][${offset}u + (((uint32_t)u - ${start}u) >> ${rest})];
""")

_BENCH = Template("""\
#include <stdio.h>
#include "${name}_tables.h"

int main(void)
{
    uint16_t u[${latents}];
    while (fread(u, sizeof u, 1, stdin) == 1) {
        for (int i = 0; i < ${latents}; i++)
            u[i] = ${name}_look_up(i, u[i]);
        fwrite(u, sizeof u, 1, stdout);
    }
    return 0;
}
""")


def files(q: Quantised, name: str = "kaem") -> dict[str, bytes]:
    """`NAME_tables.npz`, `NAME_tables.mem` (one word a line, for `$readmemh`) and `NAME_tables.h`."""
    identifier(name)
    tables = q.tables
    return {
        f"{name}_tables.npz": archive(tables),
        f"{name}_tables.mem": memory(tables).encode(),
        f"{name}_tables.h": header(tables, name).encode(),
    }


def archive(tables: Tables) -> bytes:
    """Everything in `Tables`, under the same names."""
    file = io.BytesIO()
    np.savez(
        file,
        words=tables.words.astype(np.uint16),
        lo=tables.lo,
        hi=tables.hi,
        shape=np.array(tables.shape),
        bits=np.array(tables.bits),
        interpolate=np.array(tables.interpolate),
        segments=np.array(tables.segments),
    )
    return file.getvalue()


def memory(tables: Tables) -> str:
    """Words in hexadecimal, latent after latent, each with the address of its first."""
    digits = -(-tables.bits // 4)
    lines = [
        f"// {len(tables.words)} tables of {tables.entries} words of {tables.bits} bits: address = "
        f"latent * {tables.entries} + entry"
    ]
    for i, row in enumerate(tables.words.tolist()):
        lines.append(f"@{i * tables.entries:X} // latent {i}")
        lines += [f"{word:0{digits}x}" for word in row]
    return "\n".join(lines) + "\n"


def header(tables: Tables, name: str) -> str:
    """The tables and their look-up in C, or C++."""
    return _HEADER.substitute(
        name=name,
        guard=name.upper(),
        latents=len(tables.words),
        Q=tables.shape[0],
        P=len(tables.words) // tables.shape[0],
        entries=tables.entries,
        bits=tables.bits,
        bytes=2 * tables.words.size,
        top=(1 << tables.bits) - 1,
        words=array(f"{name}_words", tables.words, "uint16_t"),
        lo=array(f"{name}_lo", tables.lo.astype(np.float32), "float"),
        hi=array(f"{name}_hi", tables.hi.astype(np.float32), "float"),
        look_up=look_up(tables, name),
    )


def look_up(tables: Tables, name: str) -> str:
    """The function of C that reads `NAME_words`."""
    text = ""
    for segment in reversed(tables.segments):  # the first holds what no later one does
        read = _LINEAR if tables.interpolate and segment.rest else _NEAREST
        whole = segment.span == U_BITS
        body = read.substitute(
            name=name,
            indent=" " * (4 if whole else 8),
            start=segment.start,
            offset=segment.offset,
            rest=segment.rest,
            mask=(1 << segment.rest) - 1,
            size=1 << segment.rest,
            half=(1 << segment.rest) >> 1,
        )
        text += body if whole else f"    if ({_inside(segment)}) {{\n{body}    }}\n"
    how = ", interpolated" if tables.interpolate else ""
    return _LOOK_UP.substitute(name=name, segments=text, how=how)


def _inside(segment: Segment) -> str:
    end = segment.start + (1 << segment.span)
    parts = [f"u >= {segment.start}"] if segment.start else []
    parts += [f"u < {end}"] if end < 1 << U_BITS else []
    return " && ".join(parts)


def verify(
    folder: Path, q: Quantised, *, name: str = "kaem", samples: int = 100_000, images: int = 0
) -> dict[str, Any]:
    """Compile the header, and compare its words with `Tables.look_up`."""
    del images  # the prior makes none
    gcc, latents = tools.find("gcc", "gcc"), len(q.tables.words)
    u = np.random.default_rng(0).integers(0, 1 << U_BITS, (samples, latents))
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "bench.c").write_text(_BENCH.substitute(name=name, latents=latents))
        command = [gcc, "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        tools.run([*command, "-I", str(folder.resolve()), "bench.c", "-o", "bench"], place)
        words = np.frombuffer(tools.run(["./bench"], place, u.astype("<u2").tobytes()), "<u2")
    with np.load(folder / f"{name}_tables.npz", allow_pickle=False) as read:
        archived = int(np.sum(read["words"] != q.tables.words))
    lines = (folder / f"{name}_tables.mem").read_text().splitlines()
    memory_words = [int(line, 16) for line in lines if line[0] not in "/@"]
    return {
        "tool": tools.version(gcc),
        "prior_samples": samples,
        "prior_mismatches": int(np.sum(words.reshape(u.shape) != q.tables.look_up(u))),
        "archive_mismatches": archived,
        "memory_mismatches": int(np.sum(np.array(memory_words) != q.tables.words.ravel())),
    }
