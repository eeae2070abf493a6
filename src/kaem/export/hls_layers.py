"""Layers in C++ for high-level synthesis: each a process that reads one stream and writes another.

A layer keeps its inputs in a buffer and makes one output after another, several products at each clock: the lanes, a
divisor of the number of products, over which buffers and weights are partitioned.
"""

from string import Template
from typing import Any

import numpy as np

from .c_layers import largest_inputs
from .layers import COORDINATE_BITS, Dense, Kolmogorov, Layer
from .quantised import Quantised
from .text import array, signed, smallest, sum_bound

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

_KOLMOGOROV = Template(
    """\
static void ${name}_layer_${i}(hls::stream<uint16_t> &in, hls::stream<${made}> &out)
{
    ${value} inputs[${F}];
#pragma HLS ARRAY_PARTITION variable=inputs cyclic factor=${lanes}
#pragma HLS ARRAY_PARTITION variable=${name}_weights_${i} cyclic factor=${lanes} dim=2

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
    + _PRODUCTS
)

_DENSE = Template(
    """\
static void ${name}_layer_${i}(hls::stream<uint16_t> &in, hls::stream<${made}> &out)
{
    ${value} inputs[${F}];
#pragma HLS ARRAY_PARTITION variable=inputs cyclic factor=${lanes}
#pragma HLS ARRAY_PARTITION variable=${name}_weights_${i} cyclic factor=${lanes} dim=2

    for (int p = 0; p < ${F}; p++) {
#pragma HLS PIPELINE II=1
        inputs[p] = (${value})((int32_t)in.read() - 32768);
    }
"""
    + _PRODUCTS
)

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


def layers_text(q: Quantised, name: str) -> tuple[str, list[str]]:
    """All layers, and the types of what each of them writes."""
    text, kinds = "", []
    shape: tuple[int, ...] = (len(q.sum.weights),)
    for i, layer in enumerate(q.layers, 1):
        part, shape = _layer(layer, name, i, shape, largest_inputs(q.layers, i))
        text += part
        kinds.append(smallest([layer.scaling.low, layer.scaling.high]))
    return text, kinds


def _lanes(products: int) -> int:
    return max(lane for lane in range(1, _MOST_LANES + 1) if products % lane == 0)


def _layer(
    layer: Layer, name: str, i: int, shape: tuple[int, ...], inputs: int
) -> tuple[str, tuple[int, ...]]:
    outputs, text, largest = len(layer.bias), "", inputs
    made: tuple[int, ...] = (outputs,)
    more: dict[str, int] = {}
    if isinstance(layer, Kolmogorov):
        rest, functions = COORDINATE_BITS - layer.cells, layer.weights.shape[2]
        template, weights = _KOLMOGOROV, layer.weights.reshape(outputs, -1)
        largest = int(np.abs(layer.tables).max())
        text = array(f"{name}_basis_{i}", layer.tables)
        what = f"Kolmogorov-Arnold layer {i}: {shape[0]} coordinates, {functions} functions of each, {outputs} sums"
        more = {"P": shape[0], "B": functions, "rest": rest, "mask": (1 << rest) - 1}
        more |= {"cell": 1 << rest, "half": 1 << (rest - 1)}
    elif isinstance(layer, Dense):
        template, weights, made = _DENSE, layer.weights, layer.shape
        what = f"Dense layer {i}: {shape[0]} coordinates to an image of {_by(made)}"
    else:
        template, weights = _UPSAMPLE, layer.kernel.transpose(0, 1, 3, 2)
        made = (2 * shape[0], 2 * shape[1], outputs)
        more = {"h": shape[0], "w": shape[1]}
        what = f"Transposed convolution {i}: {_by(shape)} to {_by(made)}"
    products = weights.shape[-1]
    value = "int16_t" if isinstance(layer, Dense) else smallest([-largest, largest])
    scaling, lanes = layer.scaling, _lanes(products)
    text = f"/* {what}; {lanes} products at each clock. */\n{text}"
    text += array(f"{name}_weights_{i}", weights) + array(f"{name}_bias_{i}", layer.bias)
    text += array(f"{name}_multiplier_{i}", scaling.multiplier, "int32_t")
    factor = f"{name}_multiplier_{i}[o]"
    if scaling.negative is not None:
        text += array(f"{name}_negative_{i}", scaling.negative, "int32_t")
        factor = f"sum < 0 ? {name}_negative_{i}[o] : {factor}"
    fill: dict[str, Any] = {
        "name": name,
        "i": i,
        "O": outputs,
        "F": products,
        "lanes": lanes,
        "value": value,
        "sum": signed(sum_bound(layer, inputs), 32),
        "made": smallest([scaling.low, scaling.high]),
        "scale": f"{name}_scale(sum, {factor}, {scaling.shift}, {scaling.low}, {scaling.high})",
    }
    return text + "\n" + template.substitute(fill, **more), made


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
