"""Test benches in Verilog, and the golden vectors that they compare with.

Inputs are random, with both ends of the quantiles and counted seeds among them; outputs are those of the Python reference.
The seeds and the quantiles of the top level belong together, so both ways in have one expected output; a stream, of the
seed 0, has its own.
"""

import numpy as np

from ..integer import Quantised
from ..integer.stream import MOST_STREAMED, mixed_seeds, quantiles
from .generator import stages
from .text import filled, memory, template

_PRIOR_INSTANCE = """\
    @name@_prior prior (
        .clk(clk), .rst(rst), .s_tdata(s_tdata[15:0]), .s_tvalid(s_tvalid), .s_tready(s_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready), .m_tlast(m_tlast));"""

_TOP_INSTANCE = """\
    wire seed_tready, u_tready;
    assign s_tready = (SEEDED != 0) ? seed_tready : u_tready;
    @name@_top top (
        .clk(clk), .rst(rst), .seeded(SEEDED != 0), .stream(SEEDED == 2), .seed_tdata(s_tdata),
        .seed_tvalid(s_tvalid && SEEDED != 0), .seed_tready(seed_tready), .u_tdata(s_tdata[15:0]),
        .u_tvalid(s_tvalid && SEEDED == 0), .u_tready(u_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready), .m_tlast(m_tlast));"""


def golden_files(q: Quantised, name: str, samples: int, images: int) -> dict[str, bytes]:
    """Return what the test benches read: inputs and the outputs of the Python reference."""
    latents, bits = len(q.tables.words), q.tables.bits
    u = np.random.default_rng(0).integers(0, 1 << 16, (samples, latents))
    u[:1], u[1:2] = 0, (1 << 16) - 1  # both ends
    seeds = mixed_seeds(images)
    drawn = quantiles(seeds, latents)
    stream = quantiles(np.array([0]), min(images, MOST_STREAMED) * latents).reshape(-1, latents)
    expected = q.generate if q.layers else q.tables.look_up
    bits_out = stages(q)[-1].given if q.layers else bits
    return {
        f"{name}_golden_prior_u.mem": memory(u, 16),
        f"{name}_golden_prior_words.mem": memory(q.tables.look_up(u), bits),
        f"{name}_golden_top_seeds.mem": memory(seeds, 32),
        f"{name}_golden_top_u.mem": memory(drawn, 16),
        f"{name}_golden_top_outputs.mem": memory(expected(drawn), bits_out),
        f"{name}_golden_top_stream.mem": memory(expected(stream), bits_out),
    }


def prior_bench(q: Quantised, name: str, samples: int) -> bytes:
    """Return NAME_prior_tb, for NAME_prior alone."""
    latents = len(q.tables.words)
    return filled(
        template("bench.v"),
        name=name,
        bench=f"{name}_prior_tb",
        module="prior",
        samples=samples,
        inputs=f"    localparam INPUTS = {latents};",
        fed="SAMPLES * INPUTS",
        outputs=latents,
        out_bits=q.tables.bits,
        read=f'    initial $readmemh("{name}_golden_prior_u.mem", given);\n'
        f'    initial $readmemh("{name}_golden_prior_words.mem", expected);',
        instance=filled(_PRIOR_INSTANCE, name=name),
    ).encode()


def top_bench(q: Quantised, name: str, samples: int, bits: int, outputs: int) -> bytes:
    """Return NAME_tb, for NAME_top, which gives `outputs` numbers of `bits` bits for each sample."""
    return filled(
        template("bench.v"),
        name=name,
        bench=f"{name}_tb",
        module="top",
        samples=samples,
        inputs="    parameter SEEDED = 1;  // 0: quantiles, 1: seeds, 2: a stream of the seed 0\n"
        f"    localparam INPUTS = (SEEDED != 0) ? 1 : {len(q.tables.words)};",
        fed="(SEEDED == 2) ? 1 : SAMPLES * INPUTS",
        outputs=outputs,
        out_bits=bits,
        read="    initial if (SEEDED == 2) given[0] = 32'd0;\n"
        f'        else if (SEEDED == 1) $readmemh("{name}_golden_top_seeds.mem", given);\n'
        f'        else $readmemh("{name}_golden_top_u.mem", given);\n'
        f'    initial if (SEEDED == 2) $readmemh("{name}_golden_top_stream.mem", expected);\n'
        f'        else $readmemh("{name}_golden_top_outputs.mem", expected);',
        instance=filled(_TOP_INSTANCE, name=name),
    ).encode()
