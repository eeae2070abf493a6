r"""The parts of a model as nodes of an ONNX graph, in float32.

The inverse CDF is the closed form of `priors.inverse_transform`. A cell is found by two counts, $\#\{k: F_k \le u\}$ among
the first knots of blocks and then within one block; what depends on the cell alone is read from one table. A
Kolmogorov-Arnold layer is its basis functions and one matrix product, a convolutional one is ONNX's ConvTranspose.
The first axis is the batch, of any size.
"""

from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__
from ..bases import RBF, BSpline, Chebyshev, Fourier, Functions, MexicanHat, Morlet, Wavelet
from ..bases.bspline import DEGREE
from ..bases.mexican_hat import NORM
from ..bases.rbf import spacing
from ..errors import UserError
from ..generators import CNN, KAN
from ..model import KAEM
from ..priors.inverse_transform import Table

_OPSET, _IR = 17, 8  # of 2022, so that old runtimes read the files

_TAKES = {"u": "quantiles u in [0, 1]", "z": "latents z"}

Operand = str | np.ndarray | np.generic


def package(name: str) -> Any:
    """A package of the extra `export`, imported when it is needed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"ONNX needs the package {name}, which is not installed; install it with "
            "`pip install 'kaem[export]'`."
        ) from error


class Graph:
    """Nodes and constants in the order of their making; a call adds a node and names its output."""

    def __init__(self) -> None:
        self.onnx = package("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, operator: str, *operands: Operand, **attributes: Any) -> str:
        inputs = [x if isinstance(x, str) else self._constant(x) for x in operands]
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, value: np.ndarray | np.generic) -> str:
        name = f"constant_{len(self.constants)}"
        whole = np.asarray(value, order="C")
        self.constants.append(self.onnx.numpy_helper.from_array(whole, name))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """With any number of samples on the first axis."""
        return self("Reshape", x, np.array([-1, *shape]))

    def sum(self, x: str, axis: int) -> str:
        return self("ReduceSum", x, np.array([axis]), keepdims=0)

    def split(self, x: str, number: int) -> list[str]:
        """Into parts along the first axis, which stays."""
        names = [f"Split_{len(self.nodes)}_{i}" for i in range(number)]
        self.nodes.append(self.onnx.helper.make_node("Split", [x], names, axis=0))
        return names

    def part(self, x: str, start: int, end: int) -> str:
        """Of the last axis."""
        return self("Slice", x, *(np.array([i]) for i in (start, end, -1)))

    def model(self, x: str, takes: str, shape: tuple[int, ...], made: tuple[int, ...]) -> bytes:
        """The graph from the input `takes`, of `shape` for each sample, to `x` as a file."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        self.nodes.append(helper.make_node("Identity", [x], ["x"]))
        graph = helper.make_graph(
            self.nodes,
            "kaem",
            [helper.make_tensor_value_info(takes, kind, ["n", *shape])],
            [helper.make_tensor_value_info("x", kind, ["n", *made])],
            self.constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
            producer_name="kaem",
            producer_version=__version__,
            doc_string=f"A Kolmogorov-Arnold energy model: {_TAKES[takes]} to data x.",
        )
        self.onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def inverse_cdf(graph: Graph, table: Table, u: str, shape: tuple[int, ...]) -> str:
    """Quantiles [n, *shape] to latents of the same shape."""
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
        """How many do not exceed u. First ones are left out: what is below them belongs to them too."""
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
    """Latents to data, flat or not."""
    made = model.generator
    x = graph.sum(z, 2) if len(model.prior.shape) == 2 else z
    if isinstance(made, KAN):
        for functions in made.layers:
            x = _layer(graph, functions, x)
    else:
        assert isinstance(made, CNN)
        x = _images(graph, made, x)
    return graph("Sigmoid", x) if made.output == "sigmoid" else x


def _layer(graph: Graph, functions: Functions, x: str) -> str:
    """Inputs [n, P] to sums [n, Q]."""
    basis: Any = functions.basis
    outputs, inputs = functions.shape
    parts: list[str] = []
    weights: list[np.ndarray] = []
    made: str | None = None
    if type(basis) in _FEATURES:
        coefficients = _array(basis.coefficients).reshape(outputs, -1)
        found = _FEATURES[type(basis)](graph, basis, graph.reshape(x, inputs, 1))
        parts, weights = [graph.reshape(found, coefficients.shape[1])], [coefficients.T]
    elif type(basis) in _MOTHERS:
        made = _wavelets(graph, basis, graph.reshape(x, 1, inputs))
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
        sums = graph("MatMul", joined, np.concatenate(weights))
        made = sums if made is None else graph("Add", made, sums)
    assert made is not None
    return made


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
    grid = _array(basis.grid)
    first, last = grid[:, 1:2] - grid[:, :1], grid[:, -1:] - grid[:, -2:-1]
    steps = np.arange(1, DEGREE + 1, dtype=np.float32)
    knots = np.concatenate(
        [grid[:, :1] - first * steps[::-1], grid, grid[:, -1:] + last * steps], axis=1
    )
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
    """Inputs [n, 1, P] to sums [n, Q]."""
    x = graph("Div", graph("Sub", x, _array(basis.centre)), _array(basis.width))
    wave = _MOTHERS[type(basis)](graph, _array(basis.tau), x)
    return graph.sum(graph("Mul", wave, _array(basis.weight)), 2)


def _images(graph: Graph, generator: CNN, x: str) -> str:
    height, width, channels = generator._smallest()
    # Columns are put in ONNX's order, channels first, so that no node has to move pixels.
    places = np.arange(height * width * channels).reshape(height, width, channels)
    order = places.transpose(2, 0, 1).reshape(-1)
    projection, offset = _array(generator.projection), _array(generator.projection_bias)
    x = graph("Gemm", x, projection[:, order], offset[order])
    x = graph.reshape(graph("LeakyRelu", x, alpha=generator.slope), channels, height, width)
    for i, (kernel, bias) in enumerate(zip(generator.kernels, generator.biases, strict=True)):
        if i:
            x = graph("LeakyRelu", x, alpha=generator.slope)
        # JAX slides the kernel over the dilated image, ONNX spreads it from each pixel: mirrored.
        mirrored = _array(kernel)[::-1, ::-1].transpose(2, 3, 0, 1)
        x = graph("ConvTranspose", x, mirrored, _array(bias), strides=[2, 2], pads=[1, 1, 1, 1])
    return x if generator.data_shape[-1] == 1 else graph("Transpose", x, perm=[0, 2, 3, 1])
