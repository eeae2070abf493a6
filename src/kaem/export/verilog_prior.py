r"""The prior in Verilog: a quantile in, a word out, one of each at every clock.

With $R$ bits of $u$ within a cell, linear reading is $(w_k\,2^R + (w_{k+1} - w_k)\,r + 2^{R-1}) \gg R$. Cells $k$ and
$k + 1$ are one even and one odd: two memories of half the size are read at once, and no bit is stored
twice. Segments whose cells hold fewer bits of $u$ shift $r$ to the left, which changes no result. The word behind the
last cell of a segment is a constant in logic, so that memories are powers of two.
"""

import numpy as np
from jaxtyping import Int

from .tables import U_BITS, Segment, Tables
from .verilog_text import filled, index_bits, memory

_HEADER = """\
// @name@_prior: samples of @latents@ latents from 16-bit quantiles, by inverse CDFs in block RAM.
//
// In:  AXI stream of quantiles u (0 .. 65535 for 0 .. 1), in the order of the latents, over and over.
// Out: AXI stream of @word_bits@-bit words, in the same order; tlast marks the last latent of a sample.
// Each latent has @entries@ entries, read @reading@; @addressing@.
// One word per clock, @delay@ clocks after its quantile. Reset is synchronous and active high.
// Made by KAEM. Verilog-2005; memories are read from the .mem files beside this one.
`default_nettype none

module @name@_prior (
    input  wire        clk,
    input  wire        rst,
    input  wire [15:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output reg  [@word_top@:0] m_tdata,
    output reg         m_tvalid,
    input  wire        m_tready,
    output reg         m_tlast
);
    localparam [@latent_top@:0] LAST_LATENT = @latent_bits@'d@last_latent@;

    wire advance = m_tready || !m_tvalid;
    assign s_tready = advance;

    reg [@latent_top@:0] latent;
    always @(posedge clk)
        if (rst) latent <= @latent_bits@'d0;
        else if (advance && s_tvalid)
            latent <= (latent == LAST_LATENT) ? @latent_bits@'d0 : latent + @latent_bits@'d1;

    // Which segment of the unit interval u is in, which entry of the table, and how far into its cell.
@decode@
"""

_NEAREST = """
    (* rom_style = "block" *) reg [@word_top@:0] words [0:@depth_top@];
    initial $readmemh("@name@_prior.mem", words);

    reg [@address_top@:0] address;
    reg valid, last;
    always @(posedge clk) begin
        if (advance) begin
            address <= @place@;
            last <= latent == LAST_LATENT;
            m_tdata <= words[address];
            m_tlast <= last;
        end
        if (rst) {m_tvalid, valid} <= 2'b00;
        else if (advance) {m_tvalid, valid} <= {valid, s_tvalid};
    end
@unused@endmodule
`default_nettype wire
"""

_LINEAR = """
    // Synthesis weighs block RAM against logic, and half a table is close to where that tips.
    (* rom_style = "block" *) reg [@word_top@:0] even [0:@depth_top@];
    (* rom_style = "block" *) reg [@word_top@:0] odd [0:@depth_top@];
    initial $readmemh("@name@_prior_even.mem", even);
    initial $readmemh("@name@_prior_odd.mem", odd);

    // The quantile behind the last cell of a segment: {latent, segment}.
    function [@word_top@:0] behind(input [@key_top@:0] key);
        case (key)
@ends@
            default: behind = @word_bits@'d0;
        endcase
    endfunction

    // 1: the pair of entries to read.
    wire [@half_top@:0] next_even = entry[@entry_top@:1] + {@half_zeros@entry[0]};
    reg [@address_top@:0] even_address, odd_address;
    reg [@fraction_top@:0] fraction_1;
    reg [@key_top@:0] key_1;
    reg swap_1, end_1;
    // 2: the words of both.
    reg [@word_top@:0] even_word, odd_word, end_word;
    reg [@fraction_top@:0] fraction_2;
    reg swap_2, end_2;
    // 3: the left one, and the step to the right one.
    wire [@word_top@:0] left = swap_2 ? odd_word : even_word;
    wire [@word_top@:0] right = end_2 ? end_word : swap_2 ? even_word : odd_word;
    reg signed [@word_bits@:0] step;
    reg [@word_top@:0] left_3, left_4;
    reg [@fraction_top@:0] fraction_3;
    // 4: the product, 5: the rounded sum, which lies between two words.
    wire signed [@product_top@:0] step_wide = {{@fraction_more@{step[@word_bits@]}}, step};
    wire signed [@product_top@:0] fraction_wide = {@product_zeros@'d0, fraction_3};
    reg signed [@product_top@:0] product;
    wire signed [@product_top@:0] sum =
        {2'b00, left_4, @fraction_bits@'d@half@} + product;

    reg [4:0] last;
    reg [3:0] valid;
    always @(posedge clk) begin
        if (advance) begin
            even_address <= @even_place@;
            odd_address <= @odd_place@;
            fraction_1 <= fraction;
            key_1 <= {latent, segment};
            swap_1 <= entry[0];
            end_1 <= final_cell;

            even_word <= even[even_address];
            odd_word <= odd[odd_address];
            end_word <= behind(key_1);
            fraction_2 <= fraction_1;
            swap_2 <= swap_1;
            end_2 <= end_1;

            step <= $signed({1'b0, right}) - $signed({1'b0, left});
            left_3 <= left;
            fraction_3 <= fraction_2;

            product <= step_wide * fraction_wide;
            left_4 <= left_3;

            m_tdata <= sum[@sum_top@:@fraction_bits@];
            last <= {last[3:0], latent == LAST_LATENT};
        end
        if (rst) {m_tvalid, valid} <= 5'd0;
        else if (advance) {m_tvalid, valid} <= {valid, s_tvalid};
    end
    always @(*) m_tlast = last[4];

    // A sum lies between two words: its sign and carry are zero, and its fraction was only rounded.
    wire unused = &{1'b0, sum[@product_top@:@carry@], sum[@fraction_top@:0]};
endmodule
`default_nettype wire
"""


def _entry_words(tables: Tables) -> tuple[Int[np.ndarray, "L E"], Int[np.ndarray, "L S"]]:
    """Words without those behind the segments, a power of two for each latent, and those."""
    parts = [
        tables.words[:, s.offset : s.offset + (1 << s.cells)].astype(np.int64)
        for s in tables.segments
    ]
    words = np.concatenate(parts, axis=1)
    if not tables.interpolate:
        return words, words[:, :0]
    ends = np.array([s.offset + (1 << s.cells) for s in tables.segments])
    return words, tables.words[:, ends].astype(np.int64)


def _bits(high: int, low: int) -> str:
    return f"s_tdata[{high}:{low}]"


def _decode(segments: tuple[Segment, ...], entry_bits: int, most: int) -> str:
    """Wires `segment`, `entry`, `final_cell` and `fraction` of a quantile, the last segment first."""
    segment_bits = index_bits(len(segments))
    chosen: dict[str, list[str]] = {"segment": [], "entry": [], "final_cell": [], "fraction": []}
    lines, base, tests = [], 0, []
    for i, s in enumerate(segments):
        cells = _bits(s.span - 1, s.rest)
        prefix = entry_bits - s.cells
        entry = f"{{{prefix}'d{base >> s.cells}, {cells}}}" if prefix else cells
        fraction = [_bits(s.rest - 1, 0)] if s.rest else []
        fraction += [f"{most - s.rest}'d0"] if most > s.rest else []
        chosen["segment"].append(f"{segment_bits}'d{i}")
        chosen["entry"].append(entry)
        chosen["final_cell"].append(f"&{cells}")
        chosen["fraction"].append(
            f"{{{', '.join(fraction)}}}" if len(fraction) > 1 else "".join(fraction)
        )
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
    """The module NAME_prior and its memories."""
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
        "word_top": tables.bits - 1,
        "latent_bits": latent_bits,
        "latent_top": latent_bits - 1,
        "last_latent": latents - 1,
        "decode": _decode(tables.segments, entry_bits, most),
        "depth_top": latents * entries // (2 if most else 1) - 1,
        "address_top": address_bits - 1,
        "place": place("entry"),
        "even_place": place("next_even"),
        "odd_place": place(f"entry[{entry_bits - 1}:1]"),
        "half_top": half_bits - 1,
        "half_zeros": f"{half_bits - 1}'d0, ",
        "entry_top": entry_bits - 1,
        "fraction_bits": most,
        "fraction_top": most - 1,
        "fraction_more": most + 1,
        "half": 1 << max(most - 1, 0),
        "product_top": product_bits - 1,
        "product_zeros": tables.bits + 2,
        "sum_top": tables.bits + most - 1,
        "carry": tables.bits + most,
        "key_top": key_bits - 1,
        "ends": "\n".join(cases),
    }
    source = filled(_HEADER + (_LINEAR if most else _NEAREST), **values)
    made = {f"{name}_prior.v": source.encode()}
    if most:
        made[f"{name}_prior_even.mem"] = memory(words[:, 0::2], tables.bits)
        made[f"{name}_prior_odd.mem"] = memory(words[:, 1::2], tables.bits)
    else:
        made[f"{name}_prior.mem"] = memory(words, tables.bits)
    return made
