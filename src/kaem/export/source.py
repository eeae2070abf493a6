"""What C and C++ for synthesis share: reading the prior's tables, drawing quantiles, and the arrays of layers."""

import math
from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np

from .integer import stream
from .integer.layers import Layer, Shape, by
from .integer.quantised import Quantised
from .integer.tables import U_BITS, Segment, Tables
from .text import array, signed, smallest

_STATE = Template("""\
typedef struct {
    uint32_t a, b;
} ${prefix}_stream;
""")

_STREAM = Template("""\
/* Random draws. Rounds of Speck64 mix the seed, so that neighbours have nothing in common; xoroshiro64+ goes on from there. */
static inline uint32_t ${prefix}_rotated(uint32_t x, int bits)
{
    return (x << bits) | (x >> (32 - bits));
}

${linkage}void ${prefix}_stream_start(${prefix}_stream *stream, uint32_t seed)
{
    uint32_t a = seed, b = ${second}u;
    for (uint32_t round = 0; round < ${rounds}; round++) {
        a = (${prefix}_rotated(a, 24) + b) ^ round;
        b = ${prefix}_rotated(b, 3) ^ a;
    }
    stream->a = a;
    stream->b = b;
}

static inline uint32_t ${prefix}_draw(${prefix}_stream *stream)
{
    const uint32_t drawn = stream->a + stream->b, both = stream->a ^ stream->b;
    stream->a = ${prefix}_rotated(stream->a, 26) ^ both ^ (both << 9);
    stream->b = ${prefix}_rotated(both, 13);
    return drawn;
}
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


def sizes(q: Quantised, name: str) -> dict[str, Any]:
    """Return what templates say of a model as a whole."""
    guard, coordinates = name.upper(), len(q.sum.weights)
    size, codes = sum(q.bytes.values()), ""
    if q.sigmoid is None:
        codes = "/* A code stands for LOW + (HIGH - LOW) * code / 65535. */\n"
        codes += f"#define {guard}_LOW ({q.lo!r})\n#define {guard}_HIGH ({q.hi!r})\n"
    return {
        "name": name,
        "guard": guard,
        "latents": len(q.tables.words),
        "Q": coordinates,
        "P": len(q.tables.words) // coordinates,
        "size": math.prod(q.data_shape),
        "shape": by(q.data_shape),
        "pixel": q.pixel,
        "unit": "codes of 16 bits" if q.sigmoid is None else "bytes",
        "range": codes,
        "bytes": size,
        "kilobits": -(-size * 8 // 1024),
    }


def parts(q: Quantised, name: str) -> dict[str, Any]:
    """Return `sizes`, and what every source has before its layers."""
    return sizes(q, name) | {
        "tables": array(f"{name}_words", q.tables.words, "uint16_t"),
        "look_up": look_up(q.tables, name),
        "sum_weights": array(f"{name}_sum_weights", q.sum.weights),
        "sum_half": 1 << (q.sum.shift - 1),
        "sum_shift": q.sum.shift,
    }


def state(prefix: str) -> str:
    """Return the type of a stream in C."""
    return _STATE.substitute(prefix=prefix)


def drawing(prefix: str, linkage: str = "") -> str:
    """Return functions of C that start a stream and draw from it."""
    second = f"0x{stream.SECOND:X}"
    return _STREAM.substitute(prefix=prefix, linkage=linkage, rounds=stream.ROUNDS, second=second)


def look_up(tables: Tables, name: str) -> str:
    """Return the function of C that reads `NAME_words`."""
    text = ""
    for segment in reversed(tables.segments):  # the first holds what no later one does
        read = _LINEAR if tables.interpolate and segment.rest else _NEAREST
        whole = segment.span == U_BITS
        rest, size = segment.rest, 1 << segment.rest
        body = read.substitute(
            segment._asdict(),
            name=name,
            indent=" " * (4 if whole else 8),
            rest=rest,
            mask=size - 1,
            size=size,
            half=size >> 1,
        )
        text += body if whole else f"    if ({_inside(segment)}) {{\n{body}    }}\n"
    how = ", interpolated" if tables.interpolate else ""
    return _LOOK_UP.substitute(name=name, segments=text, how=how)


def _inside(segment: Segment) -> str:
    end = segment.start + (1 << segment.span)
    parts = [f"u >= {segment.start}"] if segment.start else []
    parts += [f"u < {end}"] if end < 1 << U_BITS else []
    return " && ".join(parts)


def layers_text(q: Quantised, name: str, written: Callable[..., str]) -> str:
    """Return all layers, `written(layer, name, i, shape, inputs)` one after another, counted from 1."""
    text, shape = "", q.sum.weights.shape[:1]
    for i, layer in enumerate(q.layers):
        text += written(layer, name, i + 1, shape, q.inputs(i))
        shape = layer.made(shape)
    return text


def layer_parts(
    layer: Layer, name: str, i: int, shape: Shape, inputs: int, weights: np.ndarray
) -> tuple[str, dict[str, Any]]:
    """Return the arrays of layer `i`, whose inputs have a `shape` and a largest size, and what its template says."""
    scaling = layer.scaling
    text = "" if layer.tables is None else array(f"{name}_basis_{i}", layer.tables)
    text += array(f"{name}_weights_{i}", weights) + array(f"{name}_bias_{i}", layer.bias)
    text += array(f"{name}_multiplier_{i}", scaling.multiplier, "int32_t")
    if scaling.negative is not None:
        text += array(f"{name}_negative_{i}", scaling.negative, "int32_t")
    return text, layer.sizes(shape) | {
        "name": name,
        "i": i,
        "O": len(layer.bias),
        "value": smallest(layer.taken(inputs)),
        "given": "uint16_t" if i == 1 or layer.tables is not None else smallest([-inputs, inputs]),
        "sum": signed(layer.bound(inputs), 32),
        "made": made_type(layer),
    }


def made_type(layer: Layer) -> str:
    """Return the type of a layer's outputs."""
    return smallest([layer.scaling.low, layer.scaling.high])


def chained(q: Quantised, name: str, declared: Template) -> tuple[str, str]:
    """Return declarations of what layers hand on, and their calls; without a sigmoid the last makes the image."""
    declarations = calls = ""
    shape: Shape = (len(q.sum.weights),)
    for i, layer in enumerate(q.layers, 1):
        shape = layer.made(shape)
        to = "image" if i == len(q.layers) and q.sigmoid is None else f"x_{i}"
        if to != "image":
            size = math.prod(shape)
            declarations += declared.substitute(kind=made_type(layer), to=to, size=size)
        calls += f"    {name}_layer_{i}(x_{i - 1}, {to});\n"
    return declarations, calls
