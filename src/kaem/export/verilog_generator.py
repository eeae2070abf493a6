r"""The generator in Verilog: one module for each layer, in a chain of streams.

Every layer holds its inputs in a memory and makes its outputs in turn, one product per clock: a Kolmogorov-Arnold layer with
$P B$ features and $O$ outputs takes about $O (P B + 8)$ clocks. Python knows how large a sum can
become, so accumulators have the bits that they need and no more.
"""

import textwrap
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from . import verilog_engine, verilog_layers
from .layers import COORDINATE_BITS, Dense, Kolmogorov, Scaling, Upsample
from .quantised import Quantised
from .verilog_text import bits_of, filled, index_bits, memory, module_source, packed

_MODULES = {
    "mac": verilog_engine.MAC,
    "sum": verilog_engine.SUM,
    "features": verilog_engine.FEATURES,
    "table": verilog_engine.TABLE,
    "dense": verilog_layers.DENSE,
    "upsample": verilog_layers.UPSAMPLE,
}

_GENERATOR = """\
// @name@_generator: words of latents to @what@, bit by bit as the integer reference of KAEM.
//
// In:  AXI stream of @word_bits@-bit words, @latents@ for each image (those that @name@_prior makes).
// Out: AXI stream of @out@-bit @codes@, @pixels@ for each image, in the order @order@; tlast marks the last.
// @stages@ stages that work at the same time, one product per clock each; memories of @rom_bits@ bits.
// Made by KAEM. Verilog-2005; memories are read from the .mem files beside this one.
`default_nettype none

module @name@_generator (
    input  wire        clk,
    input  wire        rst,
    input  wire [@word_top@:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [@out_top@:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready,
    output wire        m_tlast
);
@body@

    reg [@pixel_top@:0] pixel;
    assign m_tlast = pixel == @pixel_bits@'d@last_pixel@;
    always @(posedge clk)
        if (rst) pixel <= @pixel_bits@'d0;
        else if (m_tvalid && m_tready) pixel <= m_tlast ? @pixel_bits@'d0 : pixel + @pixel_bits@'d1;
endmodule
`default_nettype wire
"""


class Stage(NamedTuple):
    """One module of the chain, and the memories that its parameters name."""

    module: str
    parameters: dict[str, int]
    memories: dict[str, tuple[bytes, int]]  # parameter -> content, bits
    taken: int  # bits of its inputs
    given: int  # bits of its outputs
    centred: bool = False  # takes coordinates as signed numbers around their middle


def _memory(values: Int[np.ndarray, "..."], bits: int) -> tuple[bytes, int]:
    return memory(values, bits), values.size * bits


def _reach(values: Int[np.ndarray, "..."]) -> int:
    return bits_of(int(values.min()), int(values.max()))


def _sums(
    weights: Int[np.ndarray, "O K"],
    bias: Int[np.ndarray, " O"],
    scaling: Scaling,
    bits: int,
) -> tuple[dict[str, int], tuple[bytes, int]]:
    """The parameters of the engine for sums of numbers of `bits` bits, and its constants."""
    wide = _reach(weights)
    largest = (np.abs(weights).sum(axis=1) << (bits - 1)) + np.abs(bias)
    total = max(bits_of(-int(largest.max()), int(largest.max())), bits + wide + 1)
    negative = scaling.multiplier if scaling.negative is None else scaling.negative
    factor = max(_reach(scaling.multiplier), _reach(negative))
    count = np.broadcast_to(scaling.multiplier, bias.shape)
    fields = [(bias, total), (count, factor), (np.broadcast_to(negative, bias.shape), factor)]
    low, high = scaling.low, scaling.high
    parameters = {
        "X": bits,
        "WEIGHT": wide,
        "TOTAL": total,
        "FACTOR": factor,
        "SHIFT": scaling.shift,
        "OUT": high.bit_length() if low == 0 else bits_of(low, high),
        "LOW": low,
        "HIGH": high,
    }
    return parameters, (packed(fields), bias.size * (total + 2 * factor))


def _kolmogorov(layer: Kolmogorov) -> list[Stage]:
    inputs, _, functions = layer.tables.shape
    word = _reach(layer.tables)
    sizes = {"INPUTS": inputs, "FUNCTIONS": functions, "CELLS": layer.cells, "WORD": word}
    tables = {"TABLES": _memory(layer.tables, word)}
    features = Stage("features", sizes, tables, COORDINATE_BITS, word)
    weights = layer.weights.reshape(len(layer.weights), -1)
    return [features, _dense(weights, layer.bias, layer.scaling, word)]


def _dense(
    weights: Int[np.ndarray, "O K"],
    bias: Int[np.ndarray, " O"],
    scaling: Scaling,
    bits: int,
    centred: bool = False,
) -> Stage:
    parameters, constants = _sums(weights, bias, scaling, bits)
    sizes = {"INPUTS": weights.shape[1], "OUTPUTS": weights.shape[0]}
    memories = {"WEIGHTS": _memory(weights, parameters["WEIGHT"]), "CONSTANTS": constants}
    return Stage("dense", sizes | parameters, memories, bits, parameters["OUT"], centred)


def _upsample(layer: Upsample, shape: tuple[int, int], bits: int) -> Stage:
    _, _, inputs, outputs = layer.kernel.shape
    # Tap py + 2 dy of phase py: [dy, py, dx, px, I, O] to [O, py, px, dy, dx, I].
    taps = layer.kernel.reshape(2, 2, 2, 2, inputs, outputs).transpose(5, 1, 3, 0, 2, 4)
    parameters, constants = _sums(taps.reshape(outputs, -1), layer.bias, layer.scaling, bits)
    sizes = {"HEIGHT": shape[0], "WIDTH": shape[1], "INPUTS": inputs, "OUTPUTS": outputs}
    memories = {"WEIGHTS": _memory(taps, parameters["WEIGHT"]), "CONSTANTS": constants}
    return Stage("upsample", sizes | parameters, memories, bits, parameters["OUT"])


def stages(q: Quantised) -> list[Stage]:
    """The chain from words to the output."""
    weights, word = q.sum.weights, q.tables.bits
    wide = _reach(weights)
    largest = int(np.abs(weights).sum(axis=1).max()) << word
    sizes = {
        "WORD": word,
        "COUNT": weights.size,
        "TERMS": weights.shape[1],
        "WEIGHT": wide,
        "TOTAL": max(bits_of(-largest, largest), word + wide + 2),
        "SHIFT": q.sum.shift,
        "OUT": COORDINATE_BITS,
    }
    made = [Stage("sum", sizes, {"WEIGHTS": _memory(weights, wide)}, word, COORDINATE_BITS)]
    shape = (1, 1)
    for layer in q.layers:
        match layer:
            case Kolmogorov():
                made += _kolmogorov(layer)
            case Dense():
                shape = layer.shape[:2]
                made.append(_dense(layer.weights, layer.bias, layer.scaling, COORDINATE_BITS, True))
            case Upsample():
                made.append(_upsample(layer, shape, made[-1].given))
                shape = (2 * shape[0], 2 * shape[1])
    if q.sigmoid is not None:
        code = len(q.sigmoid).bit_length() - 1
        words = {"WORDS": _memory(q.sigmoid, 8)}
        made.append(Stage("table", {"CODE": code, "WORD": 8}, words, code, 8))
    return made


def _instance(name: str, i: int, stage: Stage, last: bool) -> tuple[str, dict[str, bytes]]:
    """Stage i of the chain between streams i and i + 1, and its memories."""
    contents, values = {}, [f".{key}({value})" for key, value in stage.parameters.items()]
    for key, (content, _) in stage.memories.items():
        file = f"{name}_{i}_{stage.module}_{key.lower()}.mem"
        contents[file] = content
        values.append(f'.{key}("{file}")')
    data = f"data_{i}"
    if stage.centred:
        data = f"{{~{data}[{stage.taken - 1}], {data}[{stage.taken - 2}:0]}}"
    lines = [] if last else [f"    wire [{stage.given - 1}:0] data_{i + 1};"]
    if not last:
        lines.append(f"    wire valid_{i + 1}, ready_{i + 1};")
    to = ("m_tdata", "m_tvalid", "m_tready") if last else _stream(i + 1)
    lines += [
        f"    {name}_{stage.module} #(",
        textwrap.fill(", ".join(values), 100, initial_indent=8 * " ", subsequent_indent=8 * " "),
        f"    ) stage_{i} (",
        f"        .clk(clk), .rst(rst), .s_tdata({data}), .s_tvalid(valid_{i}), .s_tready(ready_{i}),",
        f"        .m_tdata({to[0]}), .m_tvalid({to[1]}), .m_tready({to[2]}));",
    ]
    return "\n".join(lines), contents


def _stream(i: int) -> tuple[str, str, str]:
    return f"data_{i}", f"valid_{i}", f"ready_{i}"


def rom_bits(q: Quantised) -> int:
    """Bits of all memories of the generator that are not written."""
    return sum(bits for stage in stages(q) for _, bits in stage.memories.values())


def generator_files(q: Quantised, name: str) -> dict[str, bytes]:
    """The modules NAME_generator and its layers, and their memories."""
    chain, made = stages(q), {}
    word, pixels = q.tables.bits, int(np.prod(q.data_shape))
    body = [
        f"    wire [{word - 1}:0] data_0 = s_tdata;",
        "    wire valid_0 = s_tvalid;",
        "    wire ready_0;",
        "    assign s_tready = ready_0;",
    ]
    for i, stage in enumerate(chain):
        text, memories = _instance(name, i, stage, last=i == len(chain) - 1)
        body.append("\n" + text)
        made.update(memories)
    out = chain[-1].given
    bits = index_bits(pixels)
    source = filled(
        _GENERATOR,
        name=name,
        what="an image" if q.sigmoid is not None else "an example",
        codes="bytes" if q.sigmoid is not None else "codes",
        word_bits=word,
        word_top=word - 1,
        latents=len(q.tables.words),
        out=out,
        out_top=out - 1,
        pixels=pixels,
        order="[row, column, channel]" if len(q.data_shape) == 3 else "of the data",
        stages=len(chain),
        rom_bits=sum(size for stage in chain for _, size in stage.memories.values()),
        body="\n".join(body),
        pixel_bits=bits,
        pixel_top=bits - 1,
        last_pixel=pixels - 1,
    )
    for module in {"mac"} | {stage.module for stage in chain}:
        made[f"{name}_{module}.v"] = module_source(_MODULES[module], name)
    made[f"{name}_generator.v"] = source.encode()
    return made
