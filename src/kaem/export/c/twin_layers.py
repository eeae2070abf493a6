"""Layers of generators in C and floating point: the formulas of `kaem.bases` and `kaem.generators`."""

from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np

from ...bases import RBF, BSpline, Chebyshev, Fourier, Functions
from ...bases.rbf import spacing
from ...generators import CNN, KAN
from ..bases import knots_of, weights_of
from ..integer.layers import by, upsample_sizes
from ..text import array, number
from .layers import UPSAMPLE, window_rows

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

_LEAKY = Template("""\
static inline float leaky(float x)
{
    return x > 0.0f ? x : ${slope} * x;
}

""")

_DENSE = Template("""\
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

_UPSAMPLE = Template(
    UPSAMPLE.safe_substitute(
        **dict.fromkeys(("sum", "made", "value"), "float"),
        x="in",
        y="out",
        row_type="float out[]",
        scaled="${activation}(sums[c + 1][o] + ${name}_bias_${i}[o])",
        lists="",
        gather="",
        add="""\
            for (int p = 0; p < ${P}; p++)
                for (int o = 0; o < ${width}; o++)
                    window[o] += in[p] * ${name}_weights_${i}[p][o];
""",
        last="2 * ${h} - 1",
    )
)


def _rbf(basis: Any) -> tuple[Template, dict[str, Any]]:
    width = np.exp(-np.asarray(basis.log_tau)) / np.asarray(spacing(basis.grid))
    return _RBF, {"grid": basis.grid, "inverse_width": width}


# What a basis is in C: the lines that compute its functions, and arrays for each input. One line adds another.
BASES: dict[type, Callable[[Any], tuple[Template, dict[str, Any]]]] = {
    RBF: _rbf,
    BSpline: lambda basis: (_BSPLINE, {"grid": knots_of(basis)}),
    Chebyshev: lambda basis: (_CHEBYSHEV, {"grid": basis.grid}),
    Fourier: lambda basis: (_FOURIER, {"grid": basis.grid}),
}


def unwritten(generator: Any) -> str | None:
    """Return what of a generator cannot be written in C, or None if all of it can."""
    if type(generator) not in GENERATORS:
        return f"a generator of class {type(generator).__name__}"
    for functions in getattr(generator, "layers", ()):
        if type(functions.basis) not in BASES:
            return f"functions of class {type(functions.basis).__name__}"
    return None


def _kan_text(generator: KAN, name: str) -> tuple[str, list[int]]:
    text = [_kolmogorov(functions, name, i) for i, functions in enumerate(generator.layers, 1)]
    return "".join(text), [functions.shape[0] for functions in generator.layers]


def _kolmogorov(functions: Functions, name: str, i: int) -> str:
    basis: Any = functions.basis
    size, weights = basis.coefficients.shape[2], weights_of(functions)
    outputs, parts, rows = weights.shape
    template, arrays = BASES[type(basis)](basis)
    base = ""
    if rows > size:
        base = f"        functions[{size}] = {_ACTIVATIONS[functions.activation or '']};\n"
    text = f"/* Kolmogorov-Arnold layer {i}: {parts} inputs, {rows} functions of each, {outputs} sums. */\n"
    for key, values in arrays.items():
        text += array(f"{name}_{key}_{i}", np.asarray(values, np.float32), "float")
    columns = weights.reshape(outputs, -1).T.astype(np.float32)
    text += array(f"{name}_weights_{i}", columns, "float") + "\n"
    lines = template.substitute(name=name, i=i, B=size)
    sizes = {"P": parts, "O": outputs, "F": rows}
    return text + _KOLMOGOROV.substitute(sizes, name=name, i=i, basis=lines, base=base)


def _cnn_text(generator: CNN, name: str) -> tuple[str, list[int]]:
    def arrays(i: int, weights: Any, bias: Any) -> str:
        text = array(f"{name}_weights_{i}", np.asarray(weights, np.float32), "float")
        return text + array(f"{name}_bias_{i}", np.asarray(bias, np.float32), "float") + "\n"

    text, made = _LEAKY.substitute(slope=number(generator.slope)), []
    dense = [(generator.projection, generator.projection_bias)]
    dense += zip(generator.dense, generator.dense_biases, strict=True)
    for i, (weights, bias) in enumerate(dense, 1):
        parts, size = weights.shape
        text += f"/* Dense layer {i}: {parts} to {size}. */\n" + arrays(i, weights, bias)
        text += _DENSE.substitute(name=name, i=i, P=parts, O=size)
        made.append(size)
    shape, last = generator.smallest(), len(dense) + len(generator.kernels)
    convolutions = zip(generator.kernels, generator.biases, strict=True)
    for i, (kernel, bias) in enumerate(convolutions, len(dense) + 1):
        sizes = upsample_sizes(shape, len(bias))
        larger = (sizes["tall"], sizes["wide"], len(bias))
        made.append(sizes["outputs"])
        text += f"/* Transposed convolution {i}: {by(shape)} to {by(larger)}. */\n"
        text += arrays(i, window_rows(np.asarray(kernel)), bias)
        activation = "" if i == last else "leaky"
        text += _UPSAMPLE.substitute(sizes, name=name, i=i, activation=activation)
        shape = larger
    return text, made


# All layers as text, and how many numbers each makes, for each class of generators.
GENERATORS: dict[type, Callable[[Any, str], tuple[str, list[int]]]] = {
    KAN: _kan_text,
    CNN: _cnn_text,
}
