"""Layers in C.

A layer is $a = b + \\sum_i x_i W_i$ with a row $W_i$ of weights for each input, all outputs side by side: compilers
vectorise that. Inputs that are zero are left out, which changes no sum: most basis functions are zero at a
point, and a LeakyReLU makes half of the activations so. Four rows are added at a time; two products of 8 bits fit
into 16, which doubles what one instruction does. A transposed convolution adds what each pixel gives to the
4x4 window around it, and keeps four rows of output.
"""

import math
from string import Template

import numpy as np

from .layers import COORDINATE_BITS, Dense, Kolmogorov, Layer, Upsample
from .text import array, signed, smallest, sum_bound

_ADD = Template("""\
/* sums += values[i] * weights[rows[i]] over the first `count` inputs, none of them zero: a zero ends the list. */
static void ${name}_add_${i}(${sum} sums[${width}], ${row} rows[], ${value} values[], int count)
{
    for (int i = count; i < count + 4; i++) {
        rows[i] = 0;
        values[i] = 0;
    }
    for (int i = 0; values[i] != 0; i += 4) {
        const ${weight} *w0 = ${name}_weights_${i}[rows[i]], *w1 = ${name}_weights_${i}[rows[i + 1]];
        const ${weight} *w2 = ${name}_weights_${i}[rows[i + 2]], *w3 = ${name}_weights_${i}[rows[i + 3]];
        const ${value} x0 = values[i], x1 = values[i + 1], x2 = values[i + 2], x3 = values[i + 3];
        for (int o = 0; o < ${width}; o++)
            sums[o] += (${sum})(${pair})(x0 * w0[o] + x1 * w1[o]) + (${sum})(${pair})(x2 * w2[o] + x3 * w3[o]);
    }
}

""")

# Inputs that are not zero are listed, so that the products of the others are skipped.
_LISTS = """\
    ${sum} sums[${O}];
    ${row} rows[${room}];
    ${value} values[${room}];
    int count = 0;

"""
_ADD_AND_SCALE = """\
    for (int o = 0; o < ${O}; o++)
        sums[o] = ${name}_bias_${i}[o];
    ${name}_add_${i}(sums, rows, values, count);
    for (int o = 0; o < ${O}; o++)
        y[o] = (${made})${scale};
}

"""

_KOLMOGOROV = Template(
    """\
static void ${name}_layer_${i}(const uint16_t x[${P}], ${made} *RESTRICT y)
{
"""
    + _LISTS
    + """\
    for (int p = 0; p < ${P}; p++) {
        const int32_t cell = x[p] >> ${rest}, within = x[p] & ${mask};
        const ${table} *left = ${name}_basis_${i}[p][cell], *right = ${name}_basis_${i}[p][cell + 1];
        for (int b = 0; b < ${B}; b++) {
            const int32_t value = (left[b] * (${cell} - within) + right[b] * within + ${half}) >> ${rest};
            rows[count] = (${row})(p * ${B} + b);
            values[count] = (${value})value;
            count += value != 0;
        }
    }
"""
    + _ADD_AND_SCALE
)

_DENSE = Template(
    """\
static void ${name}_layer_${i}(const uint16_t x[${P}], ${made} *RESTRICT y)
{
"""
    + _LISTS
    + """\
    for (int p = 0; p < ${P}; p++) {
        rows[count] = (${row})p;
        values[count] = (${value})((int32_t)x[p] - 32768);
        count += x[p] != 32768;
    }
"""
    + _ADD_AND_SCALE
)

_UPSAMPLE = Template("""\
static void ${name}_row_${i}(${sum} sums[${columns}][${O}], ${made} *RESTRICT y)
{
    for (int c = 0; c < ${wide}; c++)
        for (int o = 0; o < ${O}; o++)
            y[c * ${O} + o] = (${made})${scale};
}

static void ${name}_layer_${i}(const ${value} x[${pixels}], ${made} y[${outputs}])
{
    ${sum} sums[4][${columns}][${O}]; /* output rows 2r - 1 to 2r + 2, with a column more at each end */
    ${sum} window[${width}];
    ${row} rows[${room}];
    ${value} values[${room}];

    memset(sums, 0, sizeof sums);
    for (int r = 0; r < ${h}; r++) {
        for (int c = 0; c < ${w}; c++, x += ${P}) {
            int count = 0;
            for (int p = 0; p < ${P}; p++) {
                rows[count] = (${row})p;
                values[count] = x[p];
                count += x[p] != 0;
            }
            memset(window, 0, sizeof window);
            ${name}_add_${i}(window, rows, values, count);
            for (int t = 0; t < 4; t++) {
                ${sum} *part = sums[t][2 * c];
                for (int o = 0; o < ${span}; o++)
                    part[o] += window[t * ${span} + o];
            }
        }
        if (r > 0)
            ${name}_row_${i}(sums[0], y + (2 * r - 1) * ${line});
        ${name}_row_${i}(sums[1], y + 2 * r * ${line});
        memcpy(sums[0], sums[2], 2 * sizeof sums[0]);
        memset(sums[2], 0, 2 * sizeof sums[0]);
    }
    ${name}_row_${i}(sums[0], y + (${tall} - 1) * ${line});
}

""")


def largest_inputs(layers: tuple[Layer, ...], i: int) -> int:
    """What inputs of layer i do not exceed, in size."""
    if i == 1:
        return 1 << (COORDINATE_BITS - 1)
    before = layers[i - 2].scaling
    return max(abs(before.low), abs(before.high))


def layer_text(
    layer: Layer, name: str, i: int, shape: tuple[int, ...], inputs: int
) -> tuple[str, tuple[int, ...]]:
    """The text of a layer that takes what has `shape`, and the shape of what it makes."""
    common = {"name": name, "i": i}
    made: tuple[int, ...]
    if isinstance(layer, Kolmogorov):
        outputs, parts, functions = layer.weights.shape
        weights, made = layer.weights.reshape(outputs, -1).T, (outputs,)
        largest, rest = int(np.abs(layer.tables).max()), COORDINATE_BITS - layer.cells
        what = f"Kolmogorov-Arnold layer {i}: {parts} coordinates, {functions} functions of each, {outputs} sums."
        template, text = _KOLMOGOROV, array(f"{name}_basis_{i}", layer.tables)
        more = {"P": parts, "B": functions, "table": smallest(layer.tables)}
        more |= {"rest": rest, "mask": (1 << rest) - 1, "cell": 1 << rest, "half": 1 << (rest - 1)}
        value = smallest([-largest, largest])
    elif isinstance(layer, Dense):
        outputs, parts = layer.weights.shape
        weights, made, largest = layer.weights.T, layer.shape, inputs
        what = f"Dense layer {i}: {parts} coordinates to an image of {' x '.join(map(str, made))}."
        template, text, more, value = _DENSE, "", {"P": parts}, "int16_t"
    else:
        height, width, parts = shape
        outputs, largest = len(layer.bias), inputs
        made = (2 * height, 2 * width, outputs)
        weights = layer.kernel[::-1, ::-1].transpose(2, 0, 1, 3).reshape(parts, -1)
        what = f"Transposed convolution {i}: {' x '.join(map(str, shape))} to {' x '.join(map(str, made))}."
        template, text, value = _UPSAMPLE, "", smallest([-largest, largest])
        more = {"P": parts, "h": height, "w": width, "pixels": math.prod(shape)}
        more |= {
            "tall": 2 * height,
            "wide": 2 * width,
            "columns": 2 * width + 2,
            "line": 2 * width * outputs,
        }
        more |= {"outputs": math.prod(made), "span": 4 * outputs}
    scaling = layer.scaling
    common |= {
        "O": outputs,
        "width": weights.shape[1],
        "room": len(weights) + 4,  # the zeros that end a list
        "sum": signed(sum_bound(layer, inputs), 32),
        "row": "uint16_t" if len(weights) <= 1 << 16 else "uint32_t",
        "value": value,
        "weight": smallest(weights),
        "pair": signed(2 * largest * int(np.abs(weights).max())),
        "made": smallest([scaling.low, scaling.high]),
        "scale": _scale(layer, name, i, inputs),
    }
    text = f"/* {what} */\n{text}"
    text += array(f"{name}_weights_{i}", weights) + array(f"{name}_bias_{i}", layer.bias)
    text += array(f"{name}_multiplier_{i}", scaling.multiplier, "int32_t")
    if scaling.negative is not None:
        text += array(f"{name}_negative_{i}", scaling.negative, "int32_t")
    text += "\n" + _ADD.substitute(common) + template.substitute(common, **more)
    return text, made


def _scale(layer: Layer, name: str, i: int, inputs: int) -> str:
    """The expression of an output, of its sum."""
    total = f"sums[c + 1][o] + {name}_bias_{i}[o]" if isinstance(layer, Upsample) else "sums[o]"
    scaling, factor = layer.scaling, f"{name}_multiplier_{i}[o]"
    if scaling.negative is not None:
        factor = f"{name}_choose({total} < 0, {name}_negative_{i}[o], {factor})"
    function = f"{name}_scale_32" if _narrow(layer, inputs) else f"{name}_scale"
    return f"{function}({total}, {factor}, {scaling.shift}, {scaling.low}, {scaling.high})"


def _narrow(layer: Layer, inputs: int) -> bool:
    r"""Whether 32 bits hold what scaling computes if the sum is split.

    With $a = 2^{12}h + l$, $\lfloor (aM + 2^{S-1})/2^S\rfloor = \lfloor (hM + \lfloor lM/2^{12}\rfloor + 2^{S-13})/2^{S-12}\rfloor$.
    """
    shift, largest = layer.scaling.shift, int(np.abs(layer.scaling.multiplier).max())
    upper = (sum_bound(layer, inputs) >> 12) + 1
    return 13 <= shift < 43 and (
        max(upper * largest + largest + (1 << (shift - 13)), 4095 * largest) < 1 << 31
    )
