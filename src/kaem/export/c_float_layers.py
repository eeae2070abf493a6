"""Layers of generators in C and floating point: the formulas of `kaem.bases` and `kaem.generators`."""

import math
from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np

from ..bases import RBF, BSpline, Chebyshev, Fourier, Functions
from ..bases.rbf import spacing
from ..generators import CNN, KAN
from .text import array

_ACTIVATIONS = {
    "relu": "fmaxf(x, 0.0f)",
    "silu": "x / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "identity": "x",
}

# Each computes `functions` of one input x, whose number is p.
_RBF = Template("""\
        for (int b = 0; b < ${B}; b++) {
            const float t = (x - ${name}_grid_${i}[p][b]) * ${name}_inverse_width_${i}[p][b];
            functions[b] = expf(-0.5f * t * t);
        }
""")

_BSPLINE = Template("""\
        const float *t = ${name}_grid_${i}[p];
        float spline[${B} + 3];
        for (int b = 0; b < ${B} + 3; b++)
            spline[b] = x >= t[b] && x < t[b + 1] ? 1.0f : 0.0f;
        for (int k = 1; k <= 3; k++) /* Cox and de Boor */
            for (int b = 0; b < ${B} + 3 - k; b++)
                spline[b] = (x - t[b]) / (t[b + k] - t[b]) * spline[b]
                    + (t[b + k + 1] - x) / (t[b + k + 1] - t[b + 1]) * spline[b + 1];
        memcpy(functions, spline, ${B} * sizeof spline[0]);
""")

_CHEBYSHEV = Template("""\
        const float lo = ${name}_grid_${i}[p][0], hi = ${name}_grid_${i}[p][1];
        const float t = clip((2.0f * x - lo - hi) / (hi - lo), -1.0f, 1.0f);
        functions[0] = 1.0f;
        functions[1] = t;
        for (int b = 2; b < ${B}; b++)
            functions[b] = 2.0f * t * functions[b - 1] - functions[b - 2];
""")

_FOURIER = Template("""\
        const float lo = ${name}_grid_${i}[p][0], hi = ${name}_grid_${i}[p][1];
        const float phase = 3.14159265f * ((x - lo) / (hi - lo));
        for (int b = 0; b < ${B} / 2; b++) {
            functions[b] = cosf(phase * (float)(b + 1));
            functions[${B} / 2 + b] = sinf(phase * (float)(b + 1));
        }
""")

_KOLMOGOROV = Template("""\
static void ${name}_layer_${i}(const float in[${P}], float out[${O}])
{
    memset(out, 0, ${O} * sizeof out[0]);
    for (int p = 0; p < ${P}; p++) {
        const float x = in[p];
        float functions[${F}];
${basis}${base}        for (int b = 0; b < ${F}; b++) {
            const float value = functions[b], *w = ${name}_weights_${i}[p * ${F} + b];
            for (int o = 0; o < ${O}; o++)
                out[o] += value * w[o];
        }
    }
}

""")

_DENSE = Template("""\
static inline float leaky(float x)
{
    return x > 0.0f ? x : ${slope} * x;
}

static void ${name}_layer_${i}(const float in[${P}], float out[${O}])
{
    memcpy(out, ${name}_bias_${i}, ${O} * sizeof out[0]);
    for (int p = 0; p < ${P}; p++)
        for (int o = 0; o < ${O}; o++)
            out[o] += in[p] * ${name}_weights_${i}[p][o];
    for (int o = 0; o < ${O}; o++)
        out[o] = leaky(out[o]);
}

""")

_UPSAMPLE = Template("""\
static void ${name}_row_${i}(float sums[${columns}][${O}], float out[])
{
    for (int c = 0; c < ${wide}; c++)
        for (int o = 0; o < ${O}; o++)
            out[c * ${O} + o] = ${activation}(sums[c + 1][o] + ${name}_bias_${i}[o]);
}

static void ${name}_layer_${i}(const float in[${pixels}], float out[${outputs}])
{
    float sums[4][${columns}][${O}]; /* output rows 2r - 1 to 2r + 2, with a column more at each end */
    float window[${width}];

    memset(sums, 0, sizeof sums);
    for (int r = 0; r < ${h}; r++) {
        for (int c = 0; c < ${w}; c++, in += ${P}) {
            memset(window, 0, sizeof window);
            for (int p = 0; p < ${P}; p++)
                for (int o = 0; o < ${width}; o++)
                    window[o] += in[p] * ${name}_weights_${i}[p][o];
            for (int t = 0; t < 4; t++) {
                float *part = sums[t][2 * c];
                for (int o = 0; o < ${span}; o++)
                    part[o] += window[t * ${span} + o];
            }
        }
        if (r > 0)
            ${name}_row_${i}(sums[0], out + (2 * r - 1) * ${line});
        ${name}_row_${i}(sums[1], out + 2 * r * ${line});
        memcpy(sums[0], sums[2], 2 * sizeof sums[0]);
        memset(sums[2], 0, 2 * sizeof sums[0]);
    }
    ${name}_row_${i}(sums[0], out + (2 * ${h} - 1) * ${line});
}

""")


def _rbf(basis: Any) -> tuple[Template, dict[str, Any]]:
    width = np.exp(-np.asarray(basis.log_tau)) / np.asarray(spacing(basis.grid))
    return _RBF, {"grid": basis.grid, "inverse_width": width}


def _bspline(basis: Any) -> tuple[Template, dict[str, Any]]:
    grid, steps = np.asarray(basis.grid, np.float32), np.arange(1, 4, dtype=np.float32)
    first, last = grid[:, 1:2] - grid[:, :1], grid[:, -1:] - grid[:, -2:-1]
    ends = grid[:, :1] - first * steps[::-1], grid[:, -1:] + last * steps
    return _BSPLINE, {"grid": np.concatenate([ends[0], grid, ends[1]], axis=1)}


_BASES: dict[type, Callable[[Any], tuple[Template, dict[str, Any]]]] = {
    RBF: _rbf,
    BSpline: _bspline,
    Chebyshev: lambda basis: (_CHEBYSHEV, {"grid": basis.grid}),
    Fourier: lambda basis: (_FOURIER, {"grid": basis.grid}),
}


def kan_text(generator: KAN, name: str) -> tuple[str, list[int]]:
    """All layers, and how many numbers each makes."""
    made = [_kolmogorov(functions, name, i) for i, functions in enumerate(generator.layers, 1)]
    return "".join(made), [functions.shape[0] for functions in generator.layers]


def _kolmogorov(functions: Functions, name: str, i: int) -> str:
    basis: Any = functions.basis
    outputs, parts, size = basis.coefficients.shape
    template, arrays = _BASES[type(basis)](basis)
    weights, base = np.asarray(basis.coefficients), ""
    if functions.base_weight is not None and functions.activation is not None:
        weights = np.concatenate([weights, np.asarray(functions.base_weight)[..., None]], axis=-1)
        base = f"        functions[{size}] = {_ACTIVATIONS[functions.activation]};\n"
    text = f"/* Kolmogorov-Arnold layer {i}: {parts} inputs, {weights.shape[2]} functions of each, {outputs} sums. */\n"
    for key, values in arrays.items():
        text += array(f"{name}_{key}_{i}", np.asarray(values, np.float32), "float")
    rows = weights.reshape(outputs, -1).T.astype(np.float32)
    text += array(f"{name}_weights_{i}", rows, "float") + "\n"
    return text + _KOLMOGOROV.substitute(
        name=name,
        i=i,
        P=parts,
        O=outputs,
        F=weights.shape[2],
        basis=template.substitute(name=name, i=i, B=size),
        base=base,
    )


def cnn_text(generator: CNN, name: str) -> tuple[str, list[int]]:
    """All layers, and how many numbers each makes."""
    parts, size = generator.projection.shape
    text = f"/* Dense layer 1: {parts} coordinates to an image. */\n"
    text += array(f"{name}_weights_1", np.asarray(generator.projection, np.float32), "float")
    text += array(f"{name}_bias_1", np.asarray(generator.projection_bias, np.float32), "float")
    slope = f"{generator.slope:.9g}"
    slope += "f" if "." in slope or "e" in slope else ".0f"
    text += "\n" + _DENSE.substitute(name=name, i=1, P=parts, O=size, slope=slope)
    (height, width, inputs), sizes = generator._smallest(), [size]
    for i, (kernel, bias) in enumerate(zip(generator.kernels, generator.biases, strict=True), 2):
        weights = np.asarray(kernel, np.float32)[::-1, ::-1].transpose(2, 0, 1, 3)
        outputs, last = len(bias), i == len(generator.kernels) + 1
        sizes.append(math.prod((2 * height, 2 * width, outputs)))
        text += f"/* Transposed convolution {i}: {height} x {width} x {inputs} to {2 * height} x {2 * width} x {outputs}. */\n"
        text += array(f"{name}_weights_{i}", weights.reshape(inputs, -1), "float")
        text += array(f"{name}_bias_{i}", np.asarray(bias, np.float32), "float") + "\n"
        text += _UPSAMPLE.substitute(
            name=name,
            i=i,
            P=inputs,
            O=outputs,
            h=height,
            w=width,
            wide=2 * width,
            columns=2 * width + 2,
            line=2 * width * outputs,
            pixels=height * width * inputs,
            outputs=sizes[-1],
            width=16 * outputs,
            span=4 * outputs,
            activation="" if last else "leaky",
        )
        height, width, inputs = 2 * height, 2 * width, outputs
    return text, sizes
