"""A model in Verilog: the prior at one word per clock, an optional generator, a top level and self-checking test benches.

NAME_prior takes quantiles and gives words; NAME_generator takes words and gives an image; NAME_top puts them behind one
another and can draw quantiles itself, from seeds, as `stream.quantiles` does. All are bit for bit
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
from .stream import MOST_STREAMED, ROUNDS, SECOND, compared, quantiles
from .tools import MissingTool, find, version
from .verilog_bench import golden_files, prior_bench, top_bench
from .verilog_generator import generator_files, rom_bits, stages
from .verilog_prior import prior_files
from .verilog_text import filled, index_bits, module_source

_MOST_ROM_BITS = 1 << 20  # of a generator that is synthesised: yosys is slow with more
_GOLDEN = (256, 2)  # samples and images that come with the files

_QUANTILES = """
// @name@_quantiles: the @latents@ quantiles of a 32-bit seed, mixed by @rounds@ rounds of Speck64, one each clock, and
// drawn by xoroshiro64+, one each clock. With stream = 1 at the end of a sample, the next goes on from there, without
// another seed: 2^64 - 1 quantiles before they repeat.
module @name@_quantiles (
    input  wire        clk,
    input  wire        rst,
    input  wire        stream,
    input  wire [31:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [15:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready
);
    reg [31:0] a, b;
    reg [@round_top@:0] round;
    reg [@latent_top@:0] left;  // quantiles of this sample that come after the next one
    reg mixing, busy;

    wire [31:0] mixed = ({a[7:0], a[31:8]} + b) ^ {@round_zeros@'d0, round};
    wire [31:0] both = a ^ b;
    wire [31:0] drawn = a + b;
    wire last = left == @latent_bits@'d0;
    assign m_tdata = drawn[31:16];
    assign m_tvalid = busy;
    assign s_tready = !mixing && !busy;

    always @(posedge clk) begin
        if (s_tready) begin
            a <= s_tdata;
            b <= 32'h@second@;
            round <= @round_bits@'d0;
            left <= @latent_bits@'d@last_latent@;
        end else if (mixing) begin
            a <= mixed;
            b <= {b[28:0], b[31:29]} ^ mixed;
            round <= round + @round_bits@'d1;
        end else if (m_tready) begin
            a <= {a[5:0], a[31:6]} ^ both ^ {both[22:0], 9'd0};
            b <= {both[18:0], both[31:19]};
            left <= last ? @latent_bits@'d@last_latent@ : left - @latent_bits@'d1;
        end
        if (rst) {mixing, busy} <= 2'b00;
        else if (s_tready) mixing <= s_tvalid;
        else if (mixing) {mixing, busy} <= (round == @round_bits@'d@last_round@) ? 2'b01 : 2'b10;
        else if (m_tready && last && !stream) busy <= 1'b0;
    end

    // The lower half only carries.
    wire unused = &{1'b0, drawn[15:0]};
endmodule
"""

_TOP = """\
// @name@_top: @what@.
//
// With seeded = 1, each 32-bit seed of the AXI stream seed_* makes one sample: @name@_quantiles draws its @latents@
// quantiles. With stream = 1 as well, one seed makes samples without end, until stream = 0 ends them with the sample
// that is being drawn. With seeded = 0, the quantiles come from the AXI stream u_*, @latents@ for each sample.
// Change seeded only while nothing is on its way.
// Out: AXI stream of @out@-bit @codes@, @outputs@ for each sample; tlast marks the last.
module @name@_top (
    input  wire        clk,
    input  wire        rst,
    input  wire        seeded,
    input  wire        stream,
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
        .clk(clk), .rst(rst), .stream(stream),
        .s_tdata(seed_tdata), .s_tvalid(seed_tvalid && seeded), .s_tready(quantiles_tready),
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
    bits, round_bits = index_bits(latents), index_bits(ROUNDS)
    made[f"{name}_quantiles.v"] = module_source(
        _QUANTILES,
        name,
        latents=latents,
        latent_bits=bits,
        latent_top=bits - 1,
        last_latent=latents - 1,
        rounds=ROUNDS,
        round_bits=round_bits,
        round_top=round_bits - 1,
        round_zeros=32 - round_bits,
        last_round=ROUNDS - 1,
        second=f"{SECOND:X}",
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
        # Simulated draws are compared with the reference; that these are uniform is tested on more of them.
        latents = len(q.tables.words)
        uniformity = compared(lambda seeds: quantiles(seeds, latents), latents)
        found |= {what: uniformity[what] for what in uniformity if what.startswith("uniformity")}
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
    """The whole design from seeds, and as a stream."""
    tool, found = _simulated(work, f"{name}_tb", sources, {"SAMPLES": count, "SEEDED": 1})
    going_on = min(count, MOST_STREAMED)
    _, stream = _simulated(work, f"{name}_tb", sources, {"SAMPLES": going_on, "SEEDED": 2})
    if generator:
        kind = {"image_tool": tool, "images": count, "image_mismatches": found.mismatches}
        kind["image_clocks"] = found.clocks // count
    else:
        kind = {"seeded_tool": tool, "seeded_samples": count, "seeded_mismatches": found.mismatches}
    return kind | {"stream_samples": going_on, "stream_mismatches": stream.mismatches}


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
