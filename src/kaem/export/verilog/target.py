"""A model in Verilog: the prior at one word per clock, an optional generator, a top level and self-checking test benches.

NAME_prior takes quantiles and gives words; NAME_generator takes words and gives an image; NAME_top puts them behind one
another and can draw quantiles itself, from seeds, as `stream.quantiles` does. All are bit for bit
`Quantised.generate`. The test benches compare with golden vectors, pausing at random on both sides.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...errors import UserError
from ..integer import IntegerTarget, Quantised
from ..integer import stream as reference
from ..integer.target import SETTINGS
from ..text import identifier
from ..tools import MissingTool, find, version
from . import synthesis
from .bench import golden_files, prior_bench, top_bench
from .generator import generator_files, rom_bits, stages
from .prior import prior_files
from .text import filled, index_bits, module_source

_MOST_ROM_BITS = 1 << 20  # of a generator that is synthesised: yosys is slow with more
_GOLDEN = (256, 2)  # samples and images that come with the files


_PRIOR = """
    @name@_prior prior (
        .clk(clk), .rst(rst), .s_tdata(seeded ? drawn_tdata : u_tdata),
        .s_tvalid(seeded ? drawn_tvalid : u_tvalid), .s_tready(prior_tready),
        .m_tdata(@to@_tdata), .m_tvalid(@to@_tvalid), .m_tready(@to@_tready), .m_tlast(@to@_tlast));"""

_WORDS = """
    wire [@word_top@:0] word_tdata;
    wire word_tvalid, word_tready, word_tlast;"""

_GENERATOR = """
    @name@_generator generator (
        .clk(clk), .rst(rst), .s_tdata(word_tdata), .s_tvalid(word_tvalid), .s_tready(word_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready), .m_tlast(m_tlast));

    // The generator counts words itself.
    wire unused = &{1'b0, word_tlast};"""


class Verilog(IntegerTarget):
    """Verilog-2005 with memories, golden vectors and test benches; a subject without layers is a prior alone."""

    summary: ClassVar[str] = "a sampler of the prior, with --generator the whole model"
    settings: ClassVar[Mapping[str, Any]] = SETTINGS | {"generator": False}

    def files(self, subject: Quantised, name: str = "kaem") -> dict[str, bytes]:
        """Return Verilog, memories and golden vectors, by file name."""
        latents, word = len(subject.tables.words), subject.tables.bits
        contents = prior_files(subject.tables, identifier(name))
        out, outputs, codes, what = word, latents, "words", "latents"
        to, body = "m", _PRIOR
        if subject.layers:
            contents |= generator_files(subject, name)
            out, outputs = stages(subject)[-1].given, math.prod(subject.data_shape)
            codes, what = "bytes" if subject.sigmoid is not None else "codes", "images"
            to, body = "word", _WORDS + _PRIOR + _GENERATOR
        contents[f"{name}_quantiles.v"] = module_source(
            "quantiles",
            name,
            latents=latents,
            latent_bits=index_bits(latents),
            rounds=reference.ROUNDS,
            round_bits=index_bits(reference.ROUNDS),
            round_zeros=32 - index_bits(reference.ROUNDS),
            second=f"{reference.SECOND:X}",
        )
        contents[f"{name}_top.v"] = module_source(
            "top",
            name,
            what=f"{what} from seeds or quantiles",
            latents=latents,
            out_bits=out,
            outputs=outputs,
            codes=codes,
            body=filled(body, name=name, word_bits=word, to=to),
        )
        samples, images = _GOLDEN if subject.layers else (_GOLDEN[0], _GOLDEN[0])
        contents[f"{name}_prior_tb.v"] = prior_bench(subject, name, samples)
        contents[f"{name}_tb.v"] = top_bench(subject, name, images, out, outputs)
        return contents | golden_files(subject, name, samples, images)

    def verify(
        self,
        folder: Path,
        subject: Quantised,
        name: str = "*",
        *,
        samples: int = 100_000,
        images: int = 10,
    ) -> dict[str, Any]:
        """Simulate, lint, synthesise and place what `files` made.

        What needs a program that is not installed is missing from the results, and `SECTION_missing`
        names its package.
        """
        tops = sorted(Path(folder).glob(f"{name}_top.v"))
        if len(tops) != 1:
            raise UserError(
                f"{folder} must hold one Verilog export, a file NAME_top.v with those around it, but has "
                f"{len(tops)}; export again with `--to verilog`."
            )
        name = tops[0].name.removesuffix("_top.v")
        one, prior = f"{name}_one", [f"{name}_prior.v"]
        seeded = images if subject.layers else samples
        with tempfile.TemporaryDirectory(prefix="kaem-verilog-") as temporary:
            work = Path(temporary)
            for path in sorted(Path(folder).glob(f"{name}_*")):
                shutil.copy(path, work)
            sources = sorted(
                path.name for path in work.glob("*.v") if not path.name.endswith("_tb.v")
            )
            contents = golden_files(subject, name, samples, seeded)
            for file, content in (contents | prior_files(subject.tables.row(0), one)).items():
                (work / file).write_bytes(content)
            parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
                ("prior", lambda: _prior(work, name, samples)),
                ("top", lambda: _top(work, name, sources, seeded, bool(subject.layers))),
                ("lint", lambda: synthesis.lint(work, f"{name}_top", sources)),
                ("synthesis", lambda: synthesis.synthesis(work, "prior", f"{name}_prior", prior)),
                (
                    "synthesis",
                    lambda: synthesis.synthesis(work, "one", f"{one}_prior", [f"{one}_prior.v"]),
                ),
                ("clock", lambda: _clock(work, f"{one}_prior")),
            ]
            results = synthesis.sections(parts) | _uniformity(len(subject.tables.words))
            if subject.layers:
                results["generator_rom_bits"] = rom_bits(subject)
                whole = ("synthesis", lambda: _generator(work, name, sources, subject))
                results |= synthesis.sections([whole])
        return results


def _uniformity(latents: int) -> dict[str, Any]:
    """Test the reference, with which simulated draws were compared, on more of them than those."""
    tested = reference.compared(lambda seeds: reference.quantiles(seeds, latents), latents)
    return {what: value for what, value in tested.items() if what.startswith("uniformity")}


def _simulated(
    work: Path, bench: str, sources: list[str], parameters: dict[str, int]
) -> tuple[str, synthesis.Simulation]:
    """Return the simulator and what it found: verilator where it is, since it is much faster."""
    try:
        found = synthesis.simulate_compiled(work, bench, sources, parameters)
        return version(find("verilator")), found
    except MissingTool:
        found = synthesis.simulate(work, bench, sources, parameters)
        return version(find("iverilog")), found


def _prior(work: Path, name: str, samples: int) -> dict[str, Any]:
    tool, found = _simulated(work, f"{name}_prior_tb", [f"{name}_prior.v"], {"SAMPLES": samples})
    return {"prior_tool": tool, "prior_samples": samples, "prior_mismatches": found.mismatches}


def _top(work: Path, name: str, sources: list[str], count: int, generator: bool) -> dict[str, Any]:
    """Simulate the whole design from seeds, and as a stream."""
    tool, found = _simulated(work, f"{name}_tb", sources, {"SAMPLES": count, "SEEDED": 1})
    going_on = min(count, reference.MOST_STREAMED)
    _, stream = _simulated(work, f"{name}_tb", sources, {"SAMPLES": going_on, "SEEDED": 2})
    if generator:
        kind = {"image_tool": tool, "images": count, "image_mismatches": found.mismatches}
        kind["image_clocks"] = found.clocks // count
    else:
        kind = {"seeded_tool": tool, "seeded_samples": count, "seeded_mismatches": found.mismatches}
    return kind | {"stream_samples": going_on, "stream_mismatches": stream.mismatches}


def _generator(work: Path, name: str, sources: list[str], q: Quantised) -> dict[str, Any]:
    """Return its size, where its memories fit a middling FPGA."""
    if rom_bits(q) > _MOST_ROM_BITS:
        return {}
    return synthesis.synthesis(work, "generator", f"{name}_generator", sources, ["xilinx7"])


def _clock(work: Path, top: str) -> dict[str, Any]:
    netlist = work / f"{top}_ice40.json"
    program = find("nextpnr-ice40")
    if not netlist.is_file():
        raise MissingTool("yosys", "yosys")
    return {"clock_tool": version(program), "one_ice40_hx8k_mhz": synthesis.clock(netlist)}
