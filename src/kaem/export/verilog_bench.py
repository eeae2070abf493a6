"""Test benches in Verilog, and the golden vectors that they compare with.

Inputs are random, with both ends of the quantiles and counted seeds among them; outputs are those of the Python reference.
The seeds and the quantiles of the top level belong together, so both ways in have one expected output; a stream, of the
seed 0, has its own.
"""

import numpy as np
from jaxtyping import Int

from .quantised import Quantised
from .stream import MOST_STREAMED, mixed_seeds, quantiles
from .verilog_generator import stages
from .verilog_text import filled, memory

_BENCH = """\
// @bench@: feeds golden inputs to @name@_@module@ and compares every word that it gives, with random pauses
// on both sides. Prints PASS or FAIL with counts. Run it in this folder, for example
//     iverilog -g2005 -s @bench@ -o bench @name@_*.v && vvp bench
`timescale 1ns / 1ps
`default_nettype none

module @bench@;
    parameter SAMPLES = @samples@;
@inputs@
    localparam OUTPUTS = @outputs@;
    localparam PATIENCE = 100000000;  // clocks without a word
    localparam FED = @fed@, EXPECTED = SAMPLES * OUTPUTS;

    reg [31:0] given [0:FED-1];
    reg [@out_top@:0] expected [0:EXPECTED-1];
@read@

    reg clk = 1'b0, rst = 1'b1;
    always #5 clk = !clk;
    initial #42 rst = 1'b0;

    reg [31:0] noise = 32'h2545F491;
    wire [31:0] first = noise ^ (noise << 13);
    wire [31:0] second = first ^ (first >> 17);

    reg s_tvalid = 1'b0, m_tready = 1'b0, held = 1'b0;
    wire s_tready, m_tvalid, m_tlast;
    wire [@out_top@:0] m_tdata;
    reg [@out_top@:0] held_tdata;
    integer fed = 0, checked = 0, wrong = 0, idle = 0, clocks = 0;
    wire [31:0] s_tdata = given[(fed < FED) ? fed : 0];
    wire s_taken = s_tvalid && s_tready, m_taken = m_tvalid && m_tready;
    wire last = (checked % OUTPUTS) == OUTPUTS - 1;

@instance@

    always @(posedge clk) begin
        noise <= second ^ (second << 5);
        m_tready <= noise[9:8] != 2'b00;
        if (rst) s_tvalid <= 1'b0;
        else begin
            clocks <= clocks + 1;
            if (s_taken) fed <= fed + 1;
            if (s_taken || !s_tvalid) s_tvalid <= noise[17:16] != 2'b00 && fed + (s_taken ? 1 : 0) < FED;
            // What is offered must stay until it is taken.
            held <= m_tvalid && !m_tready;
            held_tdata <= m_tdata;
            if ((held && (!m_tvalid || m_tdata !== held_tdata))
                || (m_taken && checked < EXPECTED && (m_tdata !== expected[checked] || m_tlast !== last))) begin
                wrong <= wrong + 1;
                if (wrong < 10)
                    $display("word %0d: got %h, expected %h", checked, m_tdata, expected[checked]);
            end
            if (m_taken) checked <= checked + 1;
            idle <= m_taken ? 0 : idle + 1;
            if (checked == EXPECTED || idle == PATIENCE) begin
                if (wrong == 0 && checked == EXPECTED) $write("PASS");
                else $write("FAIL");
                $display(": %0d wrong, %0d of %0d words, %0d clocks", wrong, checked, EXPECTED, clocks);
                $finish;
            end
        end
    end
endmodule
`default_nettype wire
"""

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


def golden_quantiles(latents: int, samples: int) -> Int[np.ndarray, "n L"]:
    """Quantiles of the golden vectors: both ends, then random ones."""
    u = np.random.default_rng(0).integers(0, 1 << 16, (samples, latents))
    u[:1], u[1:2] = 0, (1 << 16) - 1
    return u


def golden_files(
    q: Quantised, name: str, samples: int, images: int, generator: bool
) -> dict[str, bytes]:
    """What the test benches read: inputs and the outputs of the Python reference."""
    latents, bits = len(q.tables.words), q.tables.bits
    u, seeds = golden_quantiles(latents, samples), mixed_seeds(images)
    drawn = quantiles(seeds, latents)
    stream = quantiles(np.array([0]), min(images, MOST_STREAMED) * latents).reshape(-1, latents)
    if generator:
        expected, bits_out = q.generate, stages(q)[-1].given
    else:
        expected, bits_out = q.tables.look_up, bits
    return {
        f"{name}_golden_prior_u.mem": memory(u, 16),
        f"{name}_golden_prior_words.mem": memory(q.tables.look_up(u), bits),
        f"{name}_golden_top_seeds.mem": memory(seeds, 32),
        f"{name}_golden_top_u.mem": memory(drawn, 16),
        f"{name}_golden_top_outputs.mem": memory(expected(drawn), bits_out),
        f"{name}_golden_top_stream.mem": memory(expected(stream), bits_out),
    }


def prior_bench(q: Quantised, name: str, samples: int) -> bytes:
    """NAME_prior_tb, for NAME_prior alone."""
    latents = len(q.tables.words)
    return filled(
        _BENCH,
        name=name,
        bench=f"{name}_prior_tb",
        module="prior",
        samples=samples,
        inputs=f"    localparam INPUTS = {latents};",
        fed="SAMPLES * INPUTS",
        outputs=latents,
        out_top=q.tables.bits - 1,
        read=f'    initial $readmemh("{name}_golden_prior_u.mem", given);\n'
        f'    initial $readmemh("{name}_golden_prior_words.mem", expected);',
        instance=filled(_PRIOR_INSTANCE, name=name),
    ).encode()


def top_bench(q: Quantised, name: str, samples: int, bits: int, outputs: int) -> bytes:
    """NAME_tb, for NAME_top, which gives `outputs` numbers of `bits` bits for each sample."""
    return filled(
        _BENCH,
        name=name,
        bench=f"{name}_tb",
        module="top",
        samples=samples,
        inputs="    parameter SEEDED = 1;  // 0: quantiles, 1: seeds, 2: a stream of the seed 0\n"
        f"    localparam INPUTS = (SEEDED != 0) ? 1 : {len(q.tables.words)};",
        fed="(SEEDED == 2) ? 1 : SAMPLES * INPUTS",
        outputs=outputs,
        out_top=bits - 1,
        read="    initial if (SEEDED == 2) given[0] = 32'd0;\n"
        f'        else if (SEEDED == 1) $readmemh("{name}_golden_top_seeds.mem", given);\n'
        f'        else $readmemh("{name}_golden_top_u.mem", given);\n'
        f'    initial if (SEEDED == 2) $readmemh("{name}_golden_top_stream.mem", expected);\n'
        f'        else $readmemh("{name}_golden_top_outputs.mem", expected);',
        instance=filled(_TOP_INSTANCE, name=name),
    ).encode()
