r"""The parts of a model as nodes of an ONNX graph, in float32.

The inverse CDF is the closed form of `priors.inverse_transform`. A cell is found by two counts, $\#\{k: F_k \le u\}$ among
the first knots of blocks and then within one block; what depends on the cell alone is read from one table. A
Kolmogorov-Arnold layer is its basis functions and one matrix product, a convolutional one is ONNX's ConvTranspose.
The first axis is the batch, of any size.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...bases import RBF, BSpline, Chebyshev, Fourier, Functions, MexicanHat, Morlet, Wavelet
from ...bases.bspline import DEGREE
from ...bases.mexican_hat import NORM
from ...bases.rbf import spacing
from ...errors import UserError
from ...generators import CNN, KAN
from ...models import KAEM
from ...priors.inverse_transform import Table
from ..bases import knots_of
from ..target import way_of
from .graph import Graph, Operand


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def inverse_cdf(graph: Graph, table: Table, u: str, shape: tuple[int, ...]) -> str:
    """Add quantiles [n, *shape] to latents of the same shape."""
    latents, cells = prod(shape), table.cells
    size = 1 << (cells.bit_length() // 2)  # of a block of cells
    blocks = -(-cells // size)
    every = jnp.broadcast_to(jnp.arange(cells), (*shape, cells))
    k, start, mass, d0, d1 = jax.jit(lambda table, k: table._cell(k))(table, every)
    rows = np.zeros((5, latents, blocks * size), np.float32)
    for row, column in zip(rows, (k, start, mass, d0, d0 + d1 - 2), strict=True):
        row[:, :cells] = _array(column).reshape(latents, cells)
    knots = np.where(np.arange(blocks * size) < cells, rows[1], np.float32(np.inf))
    starts = knots.reshape(latents, blocks, size)
    lo, hi = _array(table.lo).reshape(-1), _array(table.hi).reshape(-1)
    u = graph.reshape(u, latents)
    across = graph.reshape(u, latents, 1)

    def count(values: Operand) -> str:
        """Count how many do not exceed u. First ones are left out: what is below them belongs to them too."""
        below = graph("LessOrEqual", values, across)
        return graph.sum(graph("Cast", below, to=graph.onnx.TensorProto.INT32), 2)

    block = graph("Add", count(starts[:, 1:, 0]), np.arange(latents, dtype=np.int32) * blocks)
    within = count(graph("Gather", starts[:, :, 1:].reshape(-1, size - 1), block, axis=0))
    cell = graph("Add", graph("Mul", block, np.int32(size)), within)
    found = graph("Gather", rows.reshape(5, -1), cell, axis=1)
    position, start, mass, d0, slopes = graph.split(found, 5)

    y = graph("Div", graph("Sub", u, start), mass)
    y = graph("Clip", y, np.float32(0), np.float32(1))
    b = graph("Sub", d0, graph("Mul", y, slopes))
    a = graph("Sub", np.float32(1), b)
    twice = graph("Mul", y, np.float32(2))
    four = graph("Mul", graph("Mul", a, twice), np.float32(2))
    inside = graph("Max", graph("Add", graph("Mul", b, b), four), np.float32(1e-12))
    xi = graph("Div", twice, graph("Add", b, graph("Sqrt", inside)))
    xi = graph("Clip", xi, np.float32(0), np.float32(1))
    share = graph("Div", graph("Add", position, xi), np.float32(cells))
    return graph.reshape(graph("Add", graph("Mul", share, hi - lo), lo), *shape)


def generator(graph: Graph, model: KAEM, z: str) -> str:
    """Add latents to data, flat or not."""
    x = graph.sum(z, 2) if len(model.prior.shape) == 2 else z
    x = way_of(GENERATORS, model.generator)(graph, model.generator, x)
    return graph("Sigmoid", x) if model.generator.range == "sigmoid" else x


def _sums(graph: Graph, generator: KAN, x: str) -> str:
    for functions in generator.layers:
        x = _layer(graph, functions, x)
    return x


def _layer(graph: Graph, functions: Functions, x: str) -> str:
    """Add inputs [n, P] to sums [n, Q]."""
    basis: Any = functions.basis
    outputs, inputs = functions.shape
    parts: list[str] = []
    weights: list[np.ndarray] = []
    sums: list[str] = []
    if type(basis) in _FEATURES:
        coefficients = _array(basis.coefficients).reshape(outputs, -1)
        found = _FEATURES[type(basis)](graph, basis, graph.reshape(x, inputs, 1))
        parts, weights = [graph.reshape(found, coefficients.shape[1])], [coefficients.T]
    elif type(basis) in _MOTHERS:
        sums = [_wavelets(graph, basis, graph.reshape(x, 1, inputs))]
    else:
        known = ", ".join(cls.__name__ for cls in (*_FEATURES, *_MOTHERS))
        raise UserError(
            f"a KAN generator of {type(basis).__name__} functions cannot be written as an ONNX graph; "
            f"those of {known} can."
        )
    if functions.base_weight is not None and functions.activation is not None:
        parts.append(_ACTIVATIONS[functions.activation](graph, x))
        weights.append(_array(functions.base_weight).T)
    if parts:
        joined = parts[0] if len(parts) == 1 else graph("Concat", *parts, axis=1)
        sums.append(graph("MatMul", joined, np.concatenate(weights)))
    return sums[0] if len(sums) == 1 else graph("Add", *sums)


_ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "relu": lambda graph, x: graph("Relu", x),
    "silu": lambda graph, x: graph("Mul", x, graph("Sigmoid", x)),
    "tanh": lambda graph, x: graph("Tanh", x),
    "identity": lambda graph, x: x,
}


def _rbf(graph: Graph, basis: RBF, x: str) -> str:
    inverse_width = _array(jnp.exp(-basis.log_tau) / spacing(basis.grid))
    gap = graph("Sub", x, _array(basis.grid))
    return graph("Exp", graph("Mul", graph("Mul", gap, gap), -(inverse_width**2) / 2))


def _bspline(graph: Graph, basis: BSpline, x: str) -> str:
    knots = knots_of(basis)
    inside = graph("And", graph("GreaterOrEqual", x, knots[:, :-1]), graph("Less", x, knots[:, 1:]))
    b = graph("Cast", inside, to=graph.onnx.TensorProto.FLOAT)
    for k in range(1, DEGREE + 1):
        low, high = knots[:, : -k - 1], knots[:, k + 1 :]
        left = graph("Div", graph("Sub", x, low), knots[:, k:-1] - low)
        right = graph("Div", graph("Sub", high, x), high - knots[:, 1:-k])
        many = low.shape[1]
        left = graph("Mul", left, graph.part(b, 0, many))
        b = graph("Add", left, graph("Mul", right, graph.part(b, 1, many + 1)))
    return b


def _chebyshev(graph: Graph, basis: Chebyshev, x: str) -> str:
    lo, hi = (_array(end)[:, None] for end in basis.grid.T)
    twice = graph("Mul", x, np.float32(2))
    t = graph("Div", graph("Sub", graph("Sub", twice, lo), hi), hi - lo)
    t = graph("Clip", t, np.float32(-1), np.float32(1))
    twice = graph("Mul", t, np.float32(2))
    one = graph.onnx.numpy_helper.from_array(np.ones(1, np.float32))
    polynomials = [graph("ConstantOfShape", graph("Shape", t), value=one), t]
    for _ in range(basis.coefficients.shape[-1] - 2):
        next_but = graph("Mul", twice, polynomials[-1])
        polynomials.append(graph("Sub", next_but, polynomials[-2]))
    return graph("Concat", *polynomials, axis=2)


def _fourier(graph: Graph, basis: Fourier, x: str) -> str:
    lo, hi = (_array(end)[:, None] for end in basis.grid.T)
    orders = np.arange(1, basis.coefficients.shape[-1] // 2 + 1, dtype=np.float32)
    turn = graph("Mul", graph("Div", graph("Sub", x, lo), hi - lo), np.float32(np.pi))
    phase = graph("Mul", turn, orders)
    return graph("Concat", graph("Cos", phase), graph("Sin", phase), axis=2)


_FEATURES: dict[type, Callable[[Graph, Any, str], str]] = {
    RBF: _rbf,
    BSpline: _bspline,
    Chebyshev: _chebyshev,
    Fourier: _fourier,
}


def _morlet(graph: Graph, tau: np.ndarray, x: str) -> str:
    wave = graph("Cos", graph("Mul", x, tau))
    return graph("Mul", wave, _window(graph, graph("Mul", x, x)))


def _mexican_hat(graph: Graph, tau: np.ndarray, x: str) -> str:
    x = graph("Mul", x, tau)
    square = graph("Mul", x, x)
    wave = graph("Mul", graph("Sub", np.float32(1), square), np.float32(NORM))
    return graph("Mul", wave, _window(graph, square))


def _window(graph: Graph, square: str) -> str:
    return graph("Exp", graph("Mul", square, np.float32(-0.5)))


_MOTHERS: dict[type, Callable[[Graph, np.ndarray, str], str]] = {
    Morlet: _morlet,
    MexicanHat: _mexican_hat,
}


def _wavelets(graph: Graph, basis: Wavelet, x: str) -> str:
    """Add inputs [n, 1, P] to sums [n, Q]."""
    x = graph("Div", graph("Sub", x, _array(basis.centre)), _array(basis.width))
    wave = _MOTHERS[type(basis)](graph, _array(basis.tau), x)
    return graph.sum(graph("Mul", wave, _array(basis.weight)), 2)


def _images(graph: Graph, generator: CNN, x: str) -> str:
    height, width, channels = generator.smallest()
    # Columns are put in ONNX's order, channels first, so that no node has to move pixels.
    places = np.arange(height * width * channels).reshape(height, width, channels)
    order = places.transpose(2, 0, 1).reshape(-1)
    weights = [generator.projection, *generator.dense]
    offsets = [generator.projection_bias, *generator.dense_biases]
    for i, (weight, offset) in enumerate(zip(weights, offsets, strict=True), 1):
        columns = order if i == len(weights) else slice(None)
        x = graph("Gemm", x, _array(weight)[:, columns], _array(offset)[columns])
        x = graph("LeakyRelu", x, alpha=generator.slope)
    x = graph.reshape(x, channels, height, width)
    for i, (kernel, bias) in enumerate(zip(generator.kernels, generator.biases, strict=True)):
        if i:
            x = graph("LeakyRelu", x, alpha=generator.slope)
        # JAX slides the kernel over the dilated image, ONNX spreads it from each pixel: mirrored.
        mirrored = _array(kernel)[::-1, ::-1].transpose(2, 3, 0, 1)
        x = graph("ConvTranspose", x, mirrored, _array(bias), strides=[2, 2], pads=[1, 1, 1, 1])
    return x if generator.data_shape[-1] == 1 else graph("Transpose", x, perm=[0, 2, 3, 1])


# One line for each class of generators: coordinates [n, Q] to data before the output's activation.
GENERATORS: dict[type, Callable[[Graph, Any, str], str]] = {KAN: _sums, CNN: _images}
