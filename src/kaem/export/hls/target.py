"""The model in C++ for high-level synthesis: Vitis HLS, or any compiler for simulation.

Processes joined by streams: quantiles, words, coordinates, one process for each layer, data. Integers are those of C;
`hls::stream` is AMD's where its header is found, and a queue elsewhere.
"""

import re
import tempfile
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import numpy as np

from ...errors import UserError
from .. import tools
from ..integer import IntegerTarget, Quantised
from ..integer.stream import MOST_STREAMED, compared, mixed_seeds, quantiles
from ..integer.tables import U_BITS
from ..source import chained, drawing, layers_text, parts, sizes, state
from ..text import array, fill, identifier, template
from .layers import layer_text

PART = "xc7a35tcpg236-1"  # Artix-7, on small boards
_GOLDEN = (200, 4, 200)  # prior samples, images and draws in the file that is exported
_OPTIONS = ["-std=c++11", "-O2", *tools.STRICT, "-Wno-unknown-pragmas"]
# What the test bench prints, in this order.
_COUNTED = [
    "prior_samples",
    "prior_mismatches",
    "images",
    "image_mismatches",
    "draws",
    "draw_mismatches",
]


_OUTPUT = Template("""\
/* Codes to bytes. */
${table}
static void ${name}_output(hls::stream<uint16_t> &codes, hls::stream<uint8_t> &image)
{
    for (int i = 0; i < ${guard}_SIZE; i++) {
#pragma HLS PIPELINE II=1
        image.write(${name}_sigmoid[codes.read()]);
    }
}

""")


_STREAM = Template("""\
    hls::stream<${kind}> ${to}("${to}");
#pragma HLS STREAM variable=${to} depth=16
""")


class Hls(IntegerTarget):
    """C++ for Vitis HLS, for one part, with a test bench, golden vectors and a script."""

    summary: ClassVar[str] = "C++ for Vitis HLS, with a test bench and a script"

    def files(self, subject: Quantised, name: str = "kaem", part: str = PART) -> dict[str, bytes]:
        """Return `NAME_hls.h`, `NAME_hls.cpp`, `hls_shim.h`, the test bench, its vectors, and `run_hls.tcl`."""
        if re.fullmatch(r"[A-Za-z0-9_-]+", identifier(name) and part) is None:
            raise UserError(f"the part must be a name such as {PART}, got {part!r}.")
        common = sizes(subject, name)
        text = {
            "hls_shim.h": template(__file__, "hls_shim.h"),
            f"{name}_hls.h": fill(__file__, "header.h", common),
            f"{name}_hls.cpp": _source(subject, name),
            f"{name}_tb.cpp": fill(__file__, "test_bench.cpp", common),
            f"{name}_golden.txt": golden(subject, *_GOLDEN),
            "run_hls.tcl": fill(__file__, "run_hls.tcl", name=name, part=part),
        }
        return {file: content.encode() for file, content in text.items()}

    def verify(
        self,
        folder: Path,
        subject: Quantised,
        name: str = "kaem",
        *,
        samples: int = 100_000,
        images: int = 1_000,
    ) -> dict[str, Any]:
        """Compile the test bench with g++, run it on golden vectors, and test that draws of seeds are uniform."""
        gxx, place = tools.find("g++"), folder.resolve()
        compiler = [gxx, *_OPTIONS, str(place / f"{name}_hls.cpp"), "-I", str(place)]
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            (work / "golden.txt").write_text(golden(subject, samples, images, 2 * MOST_STREAMED))
            (work / "draws.cpp").write_text(fill(__file__, "draws.cpp", name=name))
            tools.run([*compiler, str(place / f"{name}_tb.cpp"), "-o", "bench"], work)
            tools.run([*compiler, "draws.cpp", "-o", "draws"], work)
            said = tools.run(["./bench", "golden.txt"], work, codes=(0, 1)).decode()

            def draw(seeds: np.ndarray) -> np.ndarray:
                printed = tools.run(["./draws"], work, seeds.astype("<u4").tobytes())
                return np.frombuffer(printed, "<u2")

            uniformity = compared(draw, len(subject.tables.words))
        counts = dict(zip(_COUNTED, map(int, re.findall(r"\d+", said)), strict=True))
        return {"tool": tools.version(gxx), **counts, **uniformity}


def golden(q: Quantised, samples: int, images: int, draws: int) -> str:
    """Return vectors for the test bench, a line each: quantiles and words, quantiles and data, draws.

    The first half of the draws are of counted and random seeds, the others the stream of the last of these.
    """
    rng, latents = np.random.default_rng(0), len(q.tables.words)
    u = rng.integers(0, 1 << U_BITS, (max(samples, images), latents))
    words, made = q.tables.look_up(u[:samples]), q.generate(u[:images]).reshape(images, -1)
    seeds = mixed_seeds((draws + 1) // 2)
    going_on = draws - len(seeds)
    starts = np.stack([np.ones_like(seeds), seeds >> 16, seeds & 0xFFFF], axis=1)
    stream = quantiles(seeds[-1:], (going_on + 1) * latents).reshape(-1, latents)[1:]
    rows = [
        np.hstack([u[:samples], words]),
        np.hstack([u[:images], made]),
        np.hstack([starts, quantiles(seeds, latents)]),
        np.hstack([np.zeros((going_on, 3), np.int64), stream]),
    ]
    lines = [" ".join(map(str, row)) for part in rows for row in part.tolist()]
    return "\n".join([f"{samples} {images} {draws}", *lines]) + "\n"


def _source(q: Quantised, name: str) -> str:
    common, output = parts(q, name), ""
    streams, calls = chained(q, name, _STREAM)
    if q.sigmoid is not None:
        output = _OUTPUT.substitute(common, table=array(f"{name}_sigmoid", q.sigmoid))
        calls += f"    {name}_output(x_{len(q.layers)}, image);\n"
    return fill(
        __file__,
        "source.cpp",
        common,
        layers=layers_text(q, name, layer_text),
        output=output,
        streams=streams,
        calls=calls,
        state=state(name),
        stream=drawing(name, "static "),
    )
