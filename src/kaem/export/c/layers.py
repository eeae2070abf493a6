"""Layers in C.

A layer is $a = b + \\sum_i x_i W_i$ with a row $W_i$ of weights for each input, all outputs side by side: compilers
vectorise that. Inputs that are zero are left out, which changes no sum: most basis functions are zero at a
point, and a LeakyReLU makes half of the activations so. Four rows are added at a time; two products of 8 bits fit
into 16, which doubles what one instruction does. A transposed convolution adds what each pixel gives to the
4x4 window around it, and keeps four rows of output.
"""

from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np

from ..integer.layers import Dense, Kolmogorov, Layer, Shape, Upsample
from ..source import layer_parts
from ..text import signed, smallest

_ADD = """\
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

"""

# Inputs that are not zero are listed, so that the products of the others are skipped.
_LISTED = """\
static void ${name}_layer_${i}(const ${given} x[${P}], ${made} *RESTRICT y)
{
    ${sum} sums[${O}];
    ${row} rows[${room}];
    ${value} values[${room}];
    int count = 0;

    for (int p = 0; p < ${P}; p++) {
"""

_ADD_AND_SCALE = """\
    }
    for (int o = 0; o < ${O}; o++)
        sums[o] = ${name}_bias_${i}[o];
    ${name}_add_${i}(sums, rows, values, count);
    for (int o = 0; o < ${O}; o++)
        y[o] = (${made})${scale};
}

"""

_KOLMOGOROV = """\
        const int32_t cell = x[p] >> ${rest}, within = x[p] & ${mask};
        const ${table} *left = ${name}_basis_${i}[p][cell], *right = ${name}_basis_${i}[p][cell + 1];
        for (int b = 0; b < ${B}; b++) {
            const int32_t value = (left[b] * (${cell} - within) + right[b] * within + ${half}) >> ${rest};
            rows[count] = (${row})(p * ${B} + b);
            values[count] = (${value})value;
            count += value != 0;
        }
"""

_DENSE = """\
        rows[count] = (${row})p;
        values[count] = (${value})((int32_t)x[p] - ${centre});
        count += x[p] != ${centre};
"""

# From `x` to `y`: `gather` lists what a pixel has, and `add` multiplies it into the window around it.
UPSAMPLE = Template("""\
static void ${name}_row_${i}(${sum} sums[${columns}][${O}], ${row_type})
{
    for (int c = 0; c < ${wide}; c++)
        for (int o = 0; o < ${O}; o++)
            ${y}[c * ${O} + o] = ${scaled};
}

static void ${name}_layer_${i}(const ${value} ${x}[${pixels}], ${made} ${y}[${outputs}])
{
    ${sum} sums[4][${columns}][${O}]; /* output rows 2r - 1 to 2r + 2, with a column more at each end */
    ${sum} window[${width}];
${lists}
    memset(sums, 0, sizeof sums);
    for (int r = 0; r < ${h}; r++) {
        for (int c = 0; c < ${w}; c++, ${x} += ${P}) {
${gather}            memset(window, 0, sizeof window);
${add}            for (int t = 0; t < 4; t++) {
                ${sum} *part = sums[t][2 * c];
                for (int o = 0; o < ${span}; o++)
                    part[o] += window[t * ${span} + o];
            }
        }
        if (r > 0)
            ${name}_row_${i}(sums[0], ${y} + (2 * r - 1) * ${line});
        ${name}_row_${i}(sums[1], ${y} + 2 * r * ${line});
        memcpy(sums[0], sums[2], 2 * sizeof sums[0]);
        memset(sums[2], 0, 2 * sizeof sums[0]);
    }
    ${name}_row_${i}(sums[0], ${y} + (${last}) * ${line});
}

""")

_UPSAMPLE = UPSAMPLE.safe_substitute(
    x="x",
    y="y",
    row_type="${made} *RESTRICT y",
    scaled="(${made})${scale}",
    lists="    ${row} rows[${room}];\n    ${value} values[${room}];\n",
    gather="""\
            int count = 0;
            for (int p = 0; p < ${P}; p++) {
                rows[count] = (${row})p;
                values[count] = x[p];
                count += x[p] != 0;
            }
""",
    add="            ${name}_add_${i}(window, rows, values, count);\n",
    last="${tall} - 1",
)


def layer_text(layer: Layer, name: str, i: int, shape: Shape, inputs: int) -> str:
    """Return the function `NAME_layer_I` of layer I."""
    template, total, rows = LAYERS[type(layer)]
    weights = rows(layer)
    arrays, values = layer_parts(layer, name, i, shape, inputs, weights)
    largest = -layer.taken(inputs)[0] * int(np.abs(weights).max())
    values |= {
        "width": weights.shape[1],
        "room": len(weights) + 4,  # the zeros that end a list
        "row": "uint16_t" if len(weights) <= 1 << 16 else "uint32_t",
        "table": "" if layer.tables is None else smallest(layer.tables),
        "weight": smallest(weights),
        "pair": signed(2 * largest),
        "scale": _scale(layer, name, i, inputs, Template(total).substitute(name=name, i=i)),
    }
    text = f"/* {layer.kind} {i}: {layer.says(shape)}. */\n{arrays}\n"
    return text + Template(_ADD + template).substitute(values)


# The template of each class, its sum before scaling, and its weights as rows, one for each number that is multiplied.
LAYERS: dict[type, tuple[str, str, Callable[[Any], np.ndarray]]] = {
    Kolmogorov: (
        _LISTED + _KOLMOGOROV + _ADD_AND_SCALE,
        "sums[o]",
        lambda layer: layer.weights.reshape(len(layer.weights), -1).T,
    ),
    Dense: (_LISTED + _DENSE + _ADD_AND_SCALE, "sums[o]", lambda layer: layer.weights.T),
    Upsample: (
        _UPSAMPLE,
        "sums[c + 1][o] + ${name}_bias_${i}[o]",
        lambda layer: window_rows(layer.kernel),
    ),
}


def window_rows(kernel: np.ndarray) -> np.ndarray:
    """Return what each input of a transposed convolution gives to the 4x4 window around it, a row each."""
    return kernel[::-1, ::-1].transpose(2, 0, 1, 3).reshape(kernel.shape[2], -1)


def _scale(layer: Layer, name: str, i: int, inputs: int, total: str) -> str:
    """Return the expression of an output, of its sum."""
    scaling, factor = layer.scaling, f"{name}_multiplier_{i}[o]"
    if scaling.negative is not None:
        factor = f"{name}_choose({total} < 0, {name}_negative_{i}[o], {factor})"
    function = f"{name}_scale_32" if _narrow(layer, inputs) else f"{name}_scale"
    return f"{function}({total}, {factor}, {scaling.shift}, {scaling.low}, {scaling.high})"


def _narrow(layer: Layer, inputs: int) -> bool:
    r"""Return whether 32 bits hold what scaling computes if the sum is split.

    With $a = 2^{12}h + l$, $\lfloor (aM + 2^{S-1})/2^S\rfloor = \lfloor (hM + \lfloor lM/2^{12}\rfloor + 2^{S-13})/2^{S-12}\rfloor$.
    """
    shift, largest = layer.scaling.shift, int(np.abs(layer.scaling.multiplier).max())
    upper = (layer.bound(inputs) >> 12) + 1
    return 13 <= shift < 43 and (
        max(upper * largest + largest + (1 << (shift - 13)), 4095 * largest) < 1 << 31
    )
