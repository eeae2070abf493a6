"""Layers in C++ for high-level synthesis: each a process that reads one stream and writes another.

A layer keeps its inputs in a buffer and makes one output after another, several products at each clock: the lanes, a
divisor of the number of products, over which buffers and weights are partitioned.
"""

from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np

from ..integer.layers import Dense, Kolmogorov, Layer, Shape, Upsample
from ..source import layer_parts

_MOST_LANES = 16

_PRODUCTS = """\
    for (int o = 0; o < ${O}; o++) {
        ${sum} sum = ${name}_bias_${i}[o];
        for (int f = 0; f < ${F}; f += ${lanes}) {
#pragma HLS PIPELINE II=1
            for (int lane = 0; lane < ${lanes}; lane++) {
#pragma HLS UNROLL
                sum += (${sum})inputs[f + lane] * ${name}_weights_${i}[o][f + lane];
            }
        }
        out.write((${made})${scale});
    }
}

"""

_INPUTS = """\
static void ${name}_layer_${i}(hls::stream<${given}> &in, hls::stream<${made}> &out)
{
    ${value} inputs[${F}];
#pragma HLS ARRAY_PARTITION variable=inputs cyclic factor=${lanes}
#pragma HLS ARRAY_PARTITION variable=${name}_weights_${i} cyclic factor=${lanes} dim=2

"""

_KOLMOGOROV = """\
    for (int p = 0; p < ${P}; p++) {
        const uint16_t x = in.read();
        const int32_t cell = x >> ${rest}, within = x & ${mask};
        for (int b = 0; b < ${B}; b++) {
#pragma HLS PIPELINE II=1
            const int32_t left = ${name}_basis_${i}[p][cell][b], right = ${name}_basis_${i}[p][cell + 1][b];
            inputs[p * ${B} + b] = (${value})((left * (${cell} - within) + right * within + ${half}) >> ${rest});
        }
    }
"""

_DENSE = """\
    for (int p = 0; p < ${F}; p++) {
#pragma HLS PIPELINE II=1
        inputs[p] = (${value})((int32_t)in.read() - ${centre});
    }
"""

_UPSAMPLE = Template("""\
static void ${name}_layer_${i}(hls::stream<${value}> &in, hls::stream<${made}> &out)
{
    ${value} image[${h}][${w}][${F}];
#pragma HLS ARRAY_PARTITION variable=image cyclic factor=${lanes} dim=3
#pragma HLS ARRAY_PARTITION variable=${name}_weights_${i} cyclic factor=${lanes} dim=4

    for (int r = 0; r < ${h}; r++)
        for (int c = 0; c < ${w}; c++)
            for (int f = 0; f < ${F}; f++) {
#pragma HLS PIPELINE II=1
                image[r][c][f] = in.read();
            }
    /* Output row y sees the input rows (y + k - 2) / 2 through the rows k of the kernel that make it whole. */
    for (int y = 0; y < 2 * ${h}; y++)
        for (int x = 0; x < 2 * ${w}; x++)
            for (int o = 0; o < ${O}; o++) {
                ${sum} sum = ${name}_bias_${i}[o];
                for (int tap = 0; tap < 4; tap++) {
                    const int k = y % 2 + tap / 2 * 2, l = x % 2 + tap % 2 * 2;
                    const int r = (y + k) / 2 - 1, c = (x + l) / 2 - 1;
                    const bool inside = r >= 0 && r < ${h} && c >= 0 && c < ${w};
                    for (int f = 0; f < ${F}; f += ${lanes}) {
#pragma HLS PIPELINE II=1
                        for (int lane = 0; lane < ${lanes}; lane++) {
#pragma HLS UNROLL
                            const ${value} pixel = inside ? image[r][c][f + lane] : (${value})0;
                            sum += (${sum})pixel * ${name}_weights_${i}[k][l][o][f + lane];
                        }
                    }
                }
                out.write((${made})${scale});
            }
}

""")


def layer_text(layer: Layer, name: str, i: int, shape: Shape, inputs: int) -> str:
    """Return the process `NAME_layer_I` of layer I."""
    template, arranged = LAYERS[type(layer)]
    weights, scaling = arranged(layer), layer.scaling
    arrays, values = layer_parts(layer, name, i, shape, inputs, weights)
    products = weights.shape[-1]
    lanes = max(lane for lane in range(1, _MOST_LANES + 1) if products % lane == 0)
    factor = f"{name}_multiplier_{i}[o]"
    if scaling.negative is not None:
        factor = f"sum < 0 ? {name}_negative_{i}[o] : {factor}"
    values |= {
        "F": products,
        "lanes": lanes,
        "scale": f"{name}_scale(sum, {factor}, {scaling.shift}, {scaling.low}, {scaling.high})",
    }
    what = f"{layer.kind} {i}: {layer.says(shape)}; {lanes} products at each clock."
    return f"/* {what} */\n{arrays}\n" + template.substitute(values)


# The template of each class, and its weights with what is multiplied on the last axis.
LAYERS: dict[type, tuple[Template, Callable[[Any], np.ndarray]]] = {
    Kolmogorov: (
        Template(_INPUTS + _KOLMOGOROV + _PRODUCTS),
        lambda layer: layer.weights.reshape(len(layer.weights), -1),
    ),
    Dense: (Template(_INPUTS + _DENSE + _PRODUCTS), lambda layer: layer.weights),
    Upsample: (_UPSAMPLE, lambda layer: layer.kernel.transpose(0, 1, 3, 2)),
}
