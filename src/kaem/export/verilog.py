"""A model in Verilog: the prior at one word per clock, an optional generator, a top level and self-checking test benches.

NAME_prior takes quantiles and gives words; NAME_generator takes words and gives an image; NAME_top puts them behind one
another and can draw quantiles itself, from seeds, as `quantised.quantiles` does. All are bit for bit
`Quantised.generate`. The test benches compare with golden vectors, pausing at random on both sides.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from . import synthesis
from .quantised import Quantised
from .tools import MissingTool, find, version
from .verilog_bench import golden_files, prior_bench, top_bench
from .verilog_generator import generator_files, rom_bits, stages
from .verilog_prior import prior_files
from .verilog_text import filled, index_bits, module_source

_MOST_ROM_BITS = 1 << 20  # of a generator that is synthesised: yosys is slow with more
_GOLDEN = (256, 2)  # samples and images that come with the files

_QUANTILES = """
// @name@_quantiles: the @latents@ quantiles of a 32-bit seed, by Marsaglia's xorshift32, upper halves.
module @name@_quantiles (
    input  wire        clk,
    input  wire        rst,
    input  wire [31:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [15:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready
);
    reg [31:0] state;
    reg [@latent_top@:0] left;  // quantiles of this seed that come after the next one
    reg busy;

    // Zero would stay zero.
    wire [31:0] start = (s_tdata == 32'd0) ? 32'h9E3779B9 : s_tdata;
    wire [31:0] first = state ^ {state[18:0], 13'd0};
    wire [31:0] second = first ^ {17'd0, first[31:17]};
    wire [31:0] next = second ^ {second[26:0], 5'd0};
    assign m_tdata = next[31:16];
    assign m_tvalid = busy;
    assign s_tready = !busy;

    always @(posedge clk) begin
        if (s_tready && s_tvalid) begin
            state <= start;
            left <= @latent_bits@'d@last_latent@;
        end else if (m_tvalid && m_tready) begin
            state <= next;
            left <= left - @latent_bits@'d1;
        end
        if (rst) busy <= 1'b0;
        else if (s_tready) busy <= s_tvalid;
        else if (m_tready && left == @latent_bits@'d0) busy <= 1'b0;
    end
endmodule
"""

_TOP = """\
// @name@_top: @what@.
//
// With seeded = 1, each 32-bit seed of the AXI stream seed_* makes one sample: Marsaglia's xorshift32 draws its
// @latents@ quantiles. With seeded = 0, the quantiles come from the AXI stream u_*, @latents@ for each sample.
// Change seeded only while nothing is on its way.
// Out: AXI stream of @out@-bit @codes@, @outputs@ for each sample; tlast marks the last.
module @name@_top (
    input  wire        clk,
    input  wire        rst,
    input  wire        seeded,
    input  wire [31:0] seed_tdata,
    input  wire        seed_tvalid,
    output wire        seed_tready,
    input  wire [15:0] u_tdata,
    input  wire        u_tvalid,
    output wire        u_tready,
    output wire [@out_top@:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready,
    output wire        m_tlast
);
    wire [15:0] drawn_tdata;
    wire drawn_tvalid, prior_tready;
    wire quantiles_tready;
    assign u_tready = !seeded && prior_tready;
    assign seed_tready = seeded && quantiles_tready;

    @name@_quantiles quantiles (
        .clk(clk), .rst(rst), .s_tdata(seed_tdata), .s_tvalid(seed_tvalid && seeded), .s_tready(quantiles_tready),
        .m_tdata(drawn_tdata), .m_tvalid(drawn_tvalid), .m_tready(seeded && prior_tready));
@body@
endmodule
"""

_PRIOR_ONLY = """
    @name@_prior prior (
        .clk(clk), .rst(rst), .s_tdata(seeded ? drawn_tdata : u_tdata),
        .s_tvalid(seeded ? drawn_tvalid : u_tvalid), .s_tready(prior_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready), .m_tlast(m_tlast));"""

_BOTH = """
    wire [@word_top@:0] word_tdata;
    wire word_tvalid, word_tready, word_tlast;
    @name@_prior prior (
        .clk(clk), .rst(rst), .s_tdata(seeded ? drawn_tdata : u_tdata),
        .s_tvalid(seeded ? drawn_tvalid : u_tvalid), .s_tready(prior_tready),
        .m_tdata(word_tdata), .m_tvalid(word_tvalid), .m_tready(word_tready), .m_tlast(word_tlast));
    @name@_generator generator (
        .clk(clk), .rst(rst), .s_tdata(word_tdata), .s_tvalid(word_tvalid), .s_tready(word_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready), .m_tlast(m_tlast));

    // The generator counts words itself.
    wire unused = &{1'b0, word_tlast};"""


def files(q: Quantised, name: str = "kaem", *, generator: bool = True) -> dict[str, bytes]:
    """Verilog, memories and golden vectors, by file name."""
    latents, word = len(q.tables.words), q.tables.bits
    made = prior_files(q.tables, name)
    out, outputs = word, latents
    if generator:
        made.update(generator_files(q, name))
        out, outputs = stages(q)[-1].given, int(np.prod(q.data_shape))
    body = filled(_BOTH if generator else _PRIOR_ONLY, name=name, word_top=word - 1)
    bits = index_bits(latents)
    counter = {"latents": latents, "latent_bits": bits, "latent_top": bits - 1}
    made[f"{name}_quantiles.v"] = module_source(
        _QUANTILES, name, last_latent=latents - 1, **counter
    )
    made[f"{name}_top.v"] = module_source(
        _TOP,
        name,
        what="images from seeds or quantiles" if generator else "latents from seeds or quantiles",
        latents=latents,
        out=out,
        out_top=out - 1,
        outputs=outputs,
        codes="words" if not generator else "bytes" if q.sigmoid is not None else "codes",
        body=body,
    )
    samples, images = _GOLDEN if generator else (_GOLDEN[0], _GOLDEN[0])
    made[f"{name}_prior_tb.v"] = prior_bench(q, name, samples)
    made[f"{name}_tb.v"] = top_bench(q, name, images, out, outputs)
    return made | golden_files(q, name, samples, images, generator)


def verify(
    folder: Path, q: Quantised, *, name: str = "*", samples: int = 100_000, images: int = 10
) -> dict[str, Any]:
    """Simulates, lints, synthesises and places what `files` put into `folder`.

    **Returns:** flat results. What needs a program that is not installed is missing from them, and
    `SECTION_missing` names its package.
    """
    tops = sorted(Path(folder).glob(f"{name}_top.v"))
    if len(tops) != 1:
        raise UserError(
            f"{folder} must hold one Verilog export, a file NAME_top.v with those around it, but has "
            f"{len(tops)}; export again with `--to verilog`."
        )
    name = tops[0].name.removesuffix("_top.v")
    generator = (Path(folder) / f"{name}_generator.v").is_file()
    sources = sorted(
        path.name for path in Path(folder).glob(f"{name}_*.v") if not path.name.endswith("_tb.v")
    )
    with tempfile.TemporaryDirectory(prefix="kaem-verilog-") as made:
        work = Path(made)
        for path in sorted(Path(folder).glob(f"{name}_*")):
            shutil.copy(path, work)
        seeded = images if generator else samples
        for file, content in golden_files(q, name, samples, seeded, generator).items():
            (work / file).write_bytes(content)
        one = f"{name}_one"
        for file, content in prior_files(q.tables.row(0), one).items():
            (work / file).write_bytes(content)
        prior = [f"{name}_prior.v"]
        found = synthesis.sections(
            [
                ("prior", lambda: _prior(work, name, samples)),
                ("top", lambda: _top(work, name, sources, seeded, generator)),
                ("lint", lambda: synthesis.lint(work, f"{name}_top", sources)),
                (
                    "synthesis",
                    lambda: synthesis.synthesis(work, "prior", f"{name}_prior", prior),
                ),
                (
                    "synthesis",
                    lambda: synthesis.synthesis(work, "one", f"{one}_prior", [f"{one}_prior.v"]),
                ),
                ("clock", lambda: _clock(work, f"{one}_prior")),
            ]
        )
        if generator:
            found["generator_rom_bits"] = rom_bits(q)
            found |= synthesis.sections([("synthesis", lambda: _generator(work, name, sources, q))])
    return found


def _simulated(
    work: Path, bench: str, sources: list[str], parameters: dict[str, int]
) -> tuple[str, synthesis.Simulation]:
    """The simulator and what it found: verilator where it is, since it is much faster."""
    try:
        found = synthesis.simulate_compiled(work, bench, sources, parameters)
        return version(find("verilator", "verilator")), found
    except MissingTool:
        found = synthesis.simulate(work, bench, sources, parameters)
        return version(find("iverilog", "iverilog")), found


def _prior(work: Path, name: str, samples: int) -> dict[str, Any]:
    tool, found = _simulated(work, f"{name}_prior_tb", [f"{name}_prior.v"], {"SAMPLES": samples})
    return {"prior_tool": tool, "prior_samples": samples, "prior_mismatches": found.mismatches}


def _top(work: Path, name: str, sources: list[str], count: int, generator: bool) -> dict[str, Any]:
    """The whole design from seeds."""
    tool, found = _simulated(work, f"{name}_tb", sources, {"SAMPLES": count, "SEEDED": 1})
    if not generator:
        return {
            "seeded_tool": tool,
            "seeded_samples": count,
            "seeded_mismatches": found.mismatches,
        }
    return {
        "image_tool": tool,
        "images": count,
        "image_mismatches": found.mismatches,
        "image_clocks": found.clocks // count,
    }


def _generator(work: Path, name: str, sources: list[str], q: Quantised) -> dict[str, Any]:
    """Its size, where its memories fit a middling FPGA."""
    if rom_bits(q) > _MOST_ROM_BITS:
        return {}
    return synthesis.synthesis(work, "generator", f"{name}_generator", sources, ["xilinx7"])


def _clock(work: Path, top: str) -> dict[str, Any]:
    netlist = work / f"{top}_ice40.json"
    program = find("nextpnr-ice40", "nextpnr-ice40")
    if not netlist.is_file():
        raise MissingTool("yosys", "yosys")
    return {"clock_tool": version(program), "one_ice40_hx8k_mhz": synthesis.clock(netlist)}
