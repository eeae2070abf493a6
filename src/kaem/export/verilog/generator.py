r"""The generator in Verilog: one module for each layer, in a chain of streams.

Every layer holds its inputs in a memory and makes its outputs in turn, one product per clock: a Kolmogorov-Arnold layer with
$P B$ features and $O$ outputs takes about $O (P B + 8)$ clocks. Python knows how large a sum can
become, so accumulators have the bits that they need and no more.
"""

import math
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from ..integer import Quantised
from ..integer.layers import COORDINATE_BITS, Dense, Kolmogorov, Layer, Shape, Upsample
from .text import bits_of, filled, index_bits, memory, module_source, packed, template


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


def _summed(
    module: str,
    sizes: dict[str, int],
    weights: Int[np.ndarray, "O K"],
    layer: Layer,
    bits: int,
    centred: bool = False,
) -> Stage:
    """Return a module around the engine for sums, here of numbers of `bits` bits."""
    bias, scaling, wide = layer.bias, layer.scaling, _reach(weights)
    largest = int(((np.abs(weights).sum(axis=1) << (bits - 1)) + np.abs(bias)).max())
    total = max(bits_of(-largest, largest), bits + wide + 1)
    factors = [scaling.multiplier, scaling.multiplier]
    if scaling.negative is not None:
        factors[1] = scaling.negative
    factor = max(_reach(values) for values in factors)
    fields = [(bias, total), *((np.broadcast_to(values, bias.shape), factor) for values in factors)]
    low, high = scaling.low, scaling.high
    parameters = sizes | {
        "OUTPUTS": len(weights),
        "X": bits,
        "WEIGHT": wide,
        "TOTAL": total,
        "FACTOR": factor,
        "SHIFT": scaling.shift,
        "OUT": high.bit_length() if low == 0 else bits_of(low, high),
        "LOW": low,
        "HIGH": high,
    }
    constants = packed(fields), bias.size * (total + 2 * factor)
    memories = {"WEIGHTS": _memory(weights, wide), "CONSTANTS": constants}
    return Stage(module, parameters, memories, bits, parameters["OUT"], centred)


def _kolmogorov(layer: Kolmogorov, shape: Shape, bits: int) -> list[Stage]:
    inputs, _, functions = layer.tables.shape
    word = _reach(layer.tables)
    sizes = {"INPUTS": inputs, "FUNCTIONS": functions, "CELLS": layer.cells, "WORD": word}
    tables = {"TABLES": _memory(layer.tables, word)}
    features = Stage("features", sizes, tables, COORDINATE_BITS, word)
    weights = layer.weights.reshape(len(layer.weights), -1)
    return [features, _summed("dense", {"INPUTS": weights.shape[1]}, weights, layer, word)]


def _dense(layer: Dense, shape: Shape, bits: int) -> list[Stage]:
    sizes = {"INPUTS": layer.weights.shape[1]}
    return [_summed("dense", sizes, layer.weights, layer, bits, centred=layer.centre > 0)]


def _upsample(layer: Upsample, shape: Shape, bits: int) -> list[Stage]:
    _, _, inputs, outputs = layer.kernel.shape
    # Tap py + 2 dy of phase py: [dy, py, dx, px, I, O] to [O, py, px, dy, dx, I].
    taps = layer.kernel.reshape(2, 2, 2, 2, inputs, outputs).transpose(5, 1, 3, 0, 2, 4)
    sizes = {"HEIGHT": shape[0], "WIDTH": shape[1], "INPUTS": inputs}
    return [_summed("upsample", sizes, taps.reshape(outputs, -1), layer, bits)]


# The stages of each class, for inputs of a shape and of so many bits.
LAYERS: dict[type, Callable[[Any, Shape, int], list[Stage]]] = {
    Kolmogorov: _kolmogorov,
    Dense: _dense,
    Upsample: _upsample,
}


def stages(q: Quantised) -> list[Stage]:
    """Return the chain from words to the output."""
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
    shape: Shape = weights.shape[:1]
    for layer in q.layers:
        made += LAYERS[type(layer)](layer, shape, made[-1].given)
        shape = layer.made(shape)
    if q.sigmoid is not None:
        code = len(q.sigmoid).bit_length() - 1
        words = {"WORDS": _memory(q.sigmoid, 8)}
        made.append(Stage("table", {"CODE": code, "WORD": 8}, words, code, 8))
    return made


def _instance(name: str, i: int, stage: Stage, last: bool) -> tuple[str, dict[str, bytes]]:
    """Return stage i of the chain between streams i and i + 1, and its memories."""
    contents, values = {}, [f".{key}({value})" for key, value in stage.parameters.items()]
    for key, (content, _) in stage.memories.items():
        file = f"{name}_{i}_{stage.module}_{key.lower()}.mem"
        contents[file] = content
        values.append(f'.{key}("{file}")')
    data = f"data_{i}"
    if stage.centred:
        data = f"{{~{data}[{stage.taken - 1}], {data}[{stage.taken - 2}:0]}}"
    next_data = f"    wire [{stage.given - 1}:0] data_{i + 1};"
    lines = [] if last else [next_data, f"    wire valid_{i + 1}, ready_{i + 1};"]
    to = [f"m_t{wire}" if last else f"{wire}_{i + 1}" for wire in ("data", "valid", "ready")]
    lines += [
        f"    {name}_{stage.module} #(",
        textwrap.fill(", ".join(values), 100, initial_indent=8 * " ", subsequent_indent=8 * " "),
        f"    ) stage_{i} (",
        f"        .clk(clk), .rst(rst), .s_tdata({data}), .s_tvalid(valid_{i}), .s_tready(ready_{i}),",
        f"        .m_tdata({to[0]}), .m_tvalid({to[1]}), .m_tready({to[2]}));",
    ]
    return "\n".join(lines), contents


def rom_bits(q: Quantised) -> int:
    """Return the bits of all memories of the generator that are not written."""
    return sum(bits for stage in stages(q) for _, bits in stage.memories.values())


def generator_files(q: Quantised, name: str) -> dict[str, bytes]:
    """Return the modules NAME_generator and its layers, and their memories."""
    chain = stages(q)
    word, pixels = q.tables.bits, math.prod(q.data_shape)
    contents: dict[str, bytes] = {}
    body = [
        f"    wire [{word - 1}:0] data_0 = s_tdata;",
        "    wire valid_0 = s_tvalid;",
        "    wire ready_0;",
        "    assign s_tready = ready_0;",
    ]
    for i, stage in enumerate(chain):
        text, memories = _instance(name, i, stage, last=i == len(chain) - 1)
        body.append("\n" + text)
        contents |= memories
    for module in dict.fromkeys(["mac", *(stage.module for stage in chain)]):
        contents[f"{name}_{module}.v"] = module_source(module, name)
    source = filled(
        template("generator.v"),
        name=name,
        what="an image" if q.sigmoid is not None else "an example",
        codes="bytes" if q.sigmoid is not None else "codes",
        word_bits=word,
        latents=len(q.tables.words),
        out_bits=chain[-1].given,
        pixels=pixels,
        pixel_bits=index_bits(pixels),
        order="[row, column, channel]" if len(q.data_shape) == 3 else "of the data",
        stages=len(chain),
        rom_bits=rom_bits(q),
        body="\n".join(body),
    )
    return contents | {f"{name}_generator.v": source.encode()}
