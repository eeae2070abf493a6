"""Generators in integers: a function for each class, which `GENERATORS` names.

Such a function takes a generator and a `Calibration`, and returns its layers and the range of the last sums.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ...bases import ACTIVATIONS, Functions
from ...errors import UserError
from ...generators import CNN, KAN
from ...layers.upsample import plain_upsample
from ..bases import weights_of
from .layers import COORDINATE_BITS, Dense, Kolmogorov, Layer, Scaling, Upsample

OUTPUT_BITS = 12  # of the argument of the output's sigmoid
LOGITS = 8.0  # beyond which it is 0 or 1 to less than a tenth of a byte
TOP = (1 << COORDINATE_BITS) - 1
_MARGIN = 0.02  # of a calibrated range, on both sides
_MOST_CELLS = (8, 9)  # their logarithm, with words of up to 8 bits and of more
_INTERPOLATION = 5e-4  # error of a basis function between its knots, over its maximum

Quantisation = tuple[tuple[Layer, ...], float, float]


class Calibration(NamedTuple):
    """What a generator is quantised on: coordinates [n, Q], their ranges [Q], and bits of words."""

    z: Float[np.ndarray, "n Q"]
    lo: Float[np.ndarray, " Q"]
    hi: Float[np.ndarray, " Q"]
    inner_bits: int
    weight_bits: int


def _range(values: Float[np.ndarray, "n O"]) -> tuple[np.ndarray, np.ndarray]:
    lo, hi = values.min(axis=0), values.max(axis=0)
    margin = np.maximum(_MARGIN * (hi - lo), 1e-6)
    return lo - margin, hi + margin


def _output(output: str, logits: Float[np.ndarray, "n X"]) -> tuple[float, float, int]:
    """Return the range and the bits of the last sums."""
    if output == "sigmoid":
        return -LOGITS, LOGITS, OUTPUT_BITS
    margin = _MARGIN * float(np.ptp(logits)) + 1e-6
    return float(logits.min()) - margin, float(logits.max()) + margin, COORDINATE_BITS


def _whole(weights: np.ndarray, bits: int, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return weights in integers, and the scale of each output."""
    scale = np.abs(weights).max(axis=axes, keepdims=True) / ((1 << (bits - 1)) - 1)
    scale = np.where(scale == 0, 1.0, scale)
    return np.round(weights / scale).astype(np.int64), scale.squeeze(axes)


def _kan(generator: KAN, given: Calibration) -> Quantisation:
    for functions in generator.layers:
        if not hasattr(functions.basis, "features"):
            raise UserError(
                f"a KAN generator of {type(functions.basis).__name__} functions has no shared basis to put "
                "into tables, so it cannot be quantised; its prior can (`--to lut`), and the whole "
                "model in floating point (`--to onnx`)."
            )
    x, lo, hi = given.z, given.lo, given.hi
    layers: list[Layer] = []
    out_lo = out_hi = 0.0
    for i, functions in enumerate(generator.layers):
        last = i == len(generator.layers) - 1
        bits = given.weight_bits if last else given.inner_bits
        y = np.asarray(jax.jit(jax.vmap(functions.layer))(jnp.asarray(x, jnp.float32)), np.float64)
        if last:
            out_lo, out_hi, wide = _output(generator.output, y)
            next_lo, next_hi = np.full(y.shape[1], out_lo), np.full(y.shape[1], out_hi)
        else:
            (next_lo, next_hi), wide = _range(y), COORDINATE_BITS
        layers.append(_kolmogorov(functions, (lo, hi), (next_lo, next_hi), bits, wide))
        x, lo, hi = y, next_lo, next_hi
    return tuple(layers), out_lo, out_hi


def _features(functions: Functions, x: Float[np.ndarray, "K P"]) -> Float[np.ndarray, "K P B"]:
    """Return all basis functions, the base activation last."""
    basis: Any = functions.basis
    values = np.asarray(jax.vmap(basis.features)(jnp.asarray(x, jnp.float32)), np.float64)
    if functions.base_weight is None or functions.activation is None:
        return values
    base = np.asarray(ACTIVATIONS[functions.activation](jnp.asarray(x, jnp.float32)), np.float64)
    return np.concatenate([values, base[..., None]], axis=-1)


def _kolmogorov(
    functions: Functions,
    given: tuple[np.ndarray, np.ndarray],
    sums: tuple[np.ndarray, np.ndarray],
    bits: int,
    wide: int,
) -> Kolmogorov:
    """Return a layer with words of `bits` bits, from one range to codes of `wide` bits of another."""
    top, (lo, hi), (next_lo, next_hi) = (1 << (bits - 1)) - 1, given, sums

    def at(codes: np.ndarray) -> np.ndarray:
        return _features(functions, lo + (hi - lo) * codes[:, None] / TOP)

    cells = _cells(at, max(0.5 / top, _INTERPOLATION), _MOST_CELLS[bits > 8])
    knots = at(np.arange((1 << cells) + 1) << (COORDINATE_BITS - cells))
    scale = np.abs(knots).max(axis=0) / top  # of each basis function; zero where none is in range
    tables = np.round(knots / np.where(scale == 0, 1.0, scale)).astype(np.int64).transpose(1, 0, 2)
    whole, step = _whole(weights_of(functions).astype(np.float64) * scale, bits, (1, 2))
    factor = step * ((1 << wide) - 1) / (next_hi - next_lo)
    bias = np.round(-next_lo / step).astype(np.int64)
    return Kolmogorov(tables, whole, bias, Scaling.of(factor, 0, (1 << wide) - 1), cells, bits)


def _cells(at: Callable[[np.ndarray], np.ndarray], tolerance: float, most: int) -> int:
    """Return the logarithm of how many cells make linear interpolation as good as the words are."""
    every = at(np.arange((2 << most) + 1) << (COORDINATE_BITS - most - 1))
    for cells in range(5, most):
        step = 2 << (most - cells)
        knots, middles = every[::step], every[step // 2 :: step]
        error = np.abs((knots[:-1] + knots[1:]) / 2 - middles).max(axis=0)
        if (error <= tolerance * np.abs(knots).max(axis=0) + 1e-12).all():
            return cells
    return most


def _cnn(generator: CNN, given: Calibration) -> Quantisation:
    bits = given.weight_bits
    top = (1 << (bits - 1)) - 1
    centre = 1 << (COORDINATE_BITS - 1)
    size = (given.hi - given.lo) / TOP  # of a unit of each input
    middle = given.lo + size * centre
    layers: list[Layer] = []
    weights = (generator.projection, *generator.dense)
    biases = (generator.projection_bias, *generator.dense_biases)
    made = generator.projections(jnp.asarray(given.z, jnp.float32))
    x = jnp.asarray(given.z)
    for i, (weight, shift, y) in enumerate(zip(weights, biases, made, strict=True)):
        shape = generator.smallest() if i == len(weights) - 1 else y.shape[1:]
        x = y.reshape(-1, *shape)
        matrix = np.asarray(weight, np.float64).T  # [D, Q]
        bias = np.asarray(shift, np.float64) + matrix @ middle
        whole, scale = _whole(matrix * size, bits, (1,))
        size = _activation(np.asarray(x), top)
        spread = np.broadcast_to(size, shape).reshape(-1)
        scaling = Scaling.of(scale / spread, -top, top, generator.slope)
        offset = np.round(bias / scale).astype(np.int64)
        layers.append(Dense(whole, offset, scaling, shape, bits, centre))
        centre, middle = 0, np.zeros(len(size))
    out_lo = out_hi = 0.0
    for i, (kernel, shift) in enumerate(zip(generator.kernels, generator.biases, strict=True)):
        y = jax.jit(plain_upsample)(x, kernel) + shift
        folded = np.asarray(kernel, np.float64) * size[:, None]
        whole, scale = _whole(folded, bits, (0, 1, 2))
        offset = np.asarray(shift, np.float64)
        if i == len(generator.kernels) - 1:
            out_lo, out_hi, wide = _output(generator.output, np.asarray(y).reshape(len(x), -1))
            offset = offset - out_lo
            factor = scale * ((1 << wide) - 1) / (out_hi - out_lo)
            scaling = Scaling.of(factor, 0, (1 << wide) - 1)
        else:
            x = generator.leaky(y)
            size = _activation(np.asarray(x), top)
            scaling = Scaling.of(scale / size, -top, top, generator.slope)
        layers.append(Upsample(whole, np.round(offset / scale).astype(np.int64), scaling, bits))
    return tuple(layers), out_lo, out_hi


def _activation(x: Float[np.ndarray, "n ... c"], top: int) -> Float[np.ndarray, " c"]:
    """Return the scale of each channel."""
    return np.maximum(np.abs(x).reshape(-1, x.shape[-1]).max(axis=0), 1e-6) / top


# One line for each class of generators; a class without one cannot be exported in integers.
GENERATORS: dict[type, Callable[[Any, Calibration], Quantisation]] = {KAN: _kan, CNN: _cnn}
