"""A model in integers: 16 bits of every quantile in, an image of bytes out.

Ranges are calibrated on samples. In a Kolmogorov-Arnold generator the inner layers, a small part of its weights, have words of
16 bits and the last layer of 8: what an inner layer rounds, the functions behind it magnify. In a convolutional one
all weights and activations have 8 bits, with a scale for each channel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..bases import ACTIVATIONS, Functions, LinearBasis
from ..errors import UserError
from ..generators import CNN, KAN
from ..interpret.influence import readable
from ..model import KAEM, AbstractModel
from .layers import COORDINATE_BITS, Dense, Kolmogorov, Layer, Scaling, Sum, Upsample
from .stream import quantiles
from .tables import U_BITS, Addressing, Tables, quantise_prior

OUTPUT_BITS = 12  # of the argument of the output's sigmoid
_LOGITS = 8.0  # beyond which it is 0 or 1 to less than a tenth of a byte
_MARGIN = 0.02  # of a calibrated range, on both sides
_MOST_CELLS = (8, 9)  # their logarithm, with words of up to 8 bits and of more
_INTERPOLATION = 5e-4  # error of a basis function between its knots, over its maximum
_TOP = (1 << COORDINATE_BITS) - 1


@dataclass(frozen=True)
class Quantised:
    """Everything that a target needs, in integers."""

    tables: Tables
    sum: Sum
    layers: tuple[Layer, ...]
    sigmoid: (
        Int[np.ndarray, " 4096"] | None
    )  # codes to bytes; None: codes of 16 bits are the output
    lo: float  # what the codes of an output without a sigmoid stand for
    hi: float
    data_shape: tuple[int, ...]

    def generate(self, u: Int[np.ndarray, "n L"]) -> Int[np.ndarray, "n ..."]:
        """Quantiles of 16 bits to bytes (codes of 16 bits without a sigmoid): the reference."""
        if not self.layers:
            raise ValueError(
                "only the prior was quantised: `quantise(model)` has the generator too."
            )
        u = np.asarray(u).reshape(-1, len(self.tables.words))
        x = self.sum(self.tables.look_up(u))
        for layer in self.layers:
            x = layer(x)
        if self.sigmoid is not None:
            x = self.sigmoid[x]
        return x.reshape(-1, *self.data_shape)

    def sample(self, seeds: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n ..."]:
        """An image for each seed, through `quantiles`."""
        return self.generate(quantiles(seeds, len(self.tables.words)))

    def stream(self, seed: int, samples: int) -> Int[np.ndarray, "n ..."]:
        """Successive images of one stream, of which the first is that of its seed."""
        return self.generate(quantiles(np.array([seed]), samples * len(self.tables.words)))

    def data(self, made: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """What integers of the output stand for."""
        if self.sigmoid is not None:
            return made / 255
        return self.lo + (self.hi - self.lo) * made / _TOP

    @property
    def bytes(self) -> dict[str, int]:
        """Of the prior's tables, and of the generator's tables and weights."""
        table = 0 if self.sigmoid is None else len(self.sigmoid)
        return {
            "prior": self.tables.bytes,
            "generator": table + sum(layer.bytes for layer in self.layers),
        }


def exportable(model: AbstractModel) -> KAEM:
    """The model with exact tables, or what about it cannot be exported."""
    kaem = readable(model, "export")
    generator = kaem.generator
    if not isinstance(generator, CNN | KAN):
        raise UserError(
            f"a generator of class {type(generator).__name__} cannot be exported; those of classes "
            "KAN and CNN can."
        )
    return kaem


def quantise(
    model: AbstractModel,
    *,
    entries: int = 1024,
    bits: int = 16,
    interpolate: bool = True,
    addressing: Addressing = "uniform",
    inner_bits: int = 16,
    weight_bits: int = 8,
    samples: int = 2048,
    seed: int = 0,
    generator: bool = True,
) -> Quantised:
    """The model in integers.

    **Arguments:** `entries`, `bits`, `interpolate` and `addressing` are those of the prior's tables; `inner_bits` are the
    words of inner Kolmogorov-Arnold layers, `weight_bits` those of all others; ranges are calibrated on
    `samples` draws. Without `generator` only the prior is quantised.
    """
    for name, value in (("inner_bits", inner_bits), ("weight_bits", weight_bits)):
        if not 4 <= value <= 16:
            raise ValueError(f"{name} must be from 4 to 16, got {value}.")
    kaem = exportable(model)
    tables = quantise_prior(
        kaem.prior, entries=entries, bits=bits, interpolate=interpolate, addressing=addressing
    )
    total, lo, hi = _sum(tables)
    if not generator:
        return Quantised(tables, total, (), None, 0.0, 0.0, ())
    decoder = kaem.generator
    if isinstance(decoder, KAN):
        for layer in decoder.layers:
            if not isinstance(layer.basis, LinearBasis):
                raise UserError(
                    f"a KAN generator of {type(layer.basis).__name__} functions has no shared basis to put "
                    "into tables, so it cannot be quantised; its prior can (`--to lut`), and the whole "
                    "model in floating point (`--to onnx`)."
                )
    u = np.random.default_rng(seed).integers(0, 1 << U_BITS, (samples, len(tables.words)))
    draws = tables.look_up(u)
    z = tables.latents(draws).reshape(samples, len(lo), -1).sum(axis=2)
    if isinstance(decoder, KAN):
        made = _kan(decoder, z, lo, hi, inner_bits, weight_bits)
    else:
        assert isinstance(decoder, CNN)
        made = _cnn(decoder, z, lo, hi, weight_bits)
    layers, out_lo, out_hi = made
    sigmoid = None
    if decoder.output == "sigmoid":
        logits = np.linspace(-_LOGITS, _LOGITS, 1 << OUTPUT_BITS)
        sigmoid = np.round(255 / (1 + np.exp(-logits))).astype(np.int64)
    return Quantised(tables, total, layers, sigmoid, out_lo, out_hi, tuple(kaem.data_shape))


def _sum(tables: Tables) -> tuple[Sum, Float[np.ndarray, " Q"], Float[np.ndarray, " Q"]]:
    """Words to coordinates, and the range that these divide: all that words can reach."""
    q = tables.shape[0]
    lo, hi = tables.lo.reshape(q, -1).sum(axis=1), tables.hi.reshape(q, -1).sum(axis=1)
    step = (tables.hi - tables.lo).reshape(q, -1) / ((1 << tables.bits) - 1)
    shift = COORDINATE_BITS
    weights = np.round(step * _TOP / (hi - lo)[:, None] * (1 << shift)).astype(np.int64)
    return Sum(weights, shift), lo, hi


def _range(values: Float[np.ndarray, "n O"]) -> tuple[np.ndarray, np.ndarray]:
    lo, hi = values.min(axis=0), values.max(axis=0)
    margin = np.maximum(_MARGIN * (hi - lo), 1e-6)
    return lo - margin, hi + margin


def _output(output: str, logits: Float[np.ndarray, "n X"]) -> tuple[float, float, int]:
    """The range and the bits of the last sums."""
    if output == "sigmoid":
        return -_LOGITS, _LOGITS, OUTPUT_BITS
    margin = _MARGIN * float(np.ptp(logits)) + 1e-6
    return float(logits.min()) - margin, float(logits.max()) + margin, COORDINATE_BITS


def _whole(weights: np.ndarray, bits: int, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Weights in integers, and the scale of each output."""
    scale = np.abs(weights).max(axis=axes, keepdims=True) / ((1 << (bits - 1)) - 1)
    scale = np.where(scale == 0, 1.0, scale)
    return np.round(weights / scale).astype(np.int64), scale.squeeze(axes)


def _kan(
    generator: KAN, x: np.ndarray, lo: np.ndarray, hi: np.ndarray, inner_bits: int, last_bits: int
) -> tuple[tuple[Layer, ...], float, float]:
    made: list[Layer] = []
    out_lo = out_hi = 0.0
    for i, functions in enumerate(generator.layers):
        last = i == len(generator.layers) - 1
        bits = last_bits if last else inner_bits
        y = np.asarray(jax.jit(jax.vmap(functions.layer))(jnp.asarray(x, jnp.float32)), np.float64)
        if last:
            out_lo, out_hi, wide = _output(generator.output, y)
            next_lo, next_hi = np.full(y.shape[1], out_lo), np.full(y.shape[1], out_hi)
        else:
            (next_lo, next_hi), wide = _range(y), COORDINATE_BITS
        made.append(_kolmogorov(functions, lo, hi, next_lo, next_hi, bits, wide))
        x, lo, hi = y, next_lo, next_hi
    return tuple(made), out_lo, out_hi


def _features(functions: Functions, x: Float[np.ndarray, "K P"]) -> Float[np.ndarray, "K P B"]:
    """All basis functions, the base activation last."""
    basis: Any = functions.basis
    found = np.asarray(jax.vmap(basis.features)(jnp.asarray(x, jnp.float32)), np.float64)
    if functions.base_weight is None or functions.activation is None:
        return found
    base = np.asarray(ACTIVATIONS[functions.activation](jnp.asarray(x, jnp.float32)), np.float64)
    return np.concatenate([found, base[..., None]], axis=-1)


def _kolmogorov(
    functions: Functions,
    lo: np.ndarray,
    hi: np.ndarray,
    next_lo: np.ndarray,
    next_hi: np.ndarray,
    bits: int,
    wide: int,
) -> Kolmogorov:
    basis: Any = functions.basis
    weights = np.asarray(basis.coefficients, np.float64)
    if functions.base_weight is not None and functions.activation is not None:
        weights = np.concatenate([weights, np.asarray(functions.base_weight)[..., None]], axis=-1)
    top = (1 << (bits - 1)) - 1

    def at(codes: np.ndarray) -> np.ndarray:
        return _features(functions, lo + (hi - lo) * codes[:, None] / _TOP)

    cells = _cells(at, max(0.5 / top, _INTERPOLATION), _MOST_CELLS[bits > 8])
    knots = at(np.arange((1 << cells) + 1) << (COORDINATE_BITS - cells))
    scale = np.abs(knots).max(axis=0) / top  # of each basis function; zero where none is in range
    tables = np.round(knots / np.where(scale == 0, 1.0, scale)).astype(np.int64).transpose(1, 0, 2)
    whole, step = _whole(weights * scale, bits, (1, 2))
    factor = step * ((1 << wide) - 1) / (next_hi - next_lo)
    bias = np.round(-next_lo / step).astype(np.int64)
    return Kolmogorov(tables, whole, bias, Scaling.of(factor, 0, (1 << wide) - 1), cells, bits)


def _cells(at: Callable[[np.ndarray], np.ndarray], tolerance: float, most: int) -> int:
    """The logarithm of how many cells make linear interpolation as good as the words are."""
    every = at(np.arange((2 << most) + 1) << (COORDINATE_BITS - most - 1))
    for cells in range(5, most):
        step = 2 << (most - cells)
        knots, middles = every[::step], every[step // 2 :: step]
        error = np.abs((knots[:-1] + knots[1:]) / 2 - middles).max(axis=0)
        if (error <= tolerance * np.abs(knots).max(axis=0) + 1e-12).all():
            return cells
    return most


def _cnn(
    generator: CNN, z: np.ndarray, lo: np.ndarray, hi: np.ndarray, bits: int
) -> tuple[tuple[Layer, ...], float, float]:
    top = (1 << (bits - 1)) - 1
    projection = np.asarray(generator.projection, np.float64).T  # [D, Q]
    step = (hi - lo) / _TOP
    middle = lo + step * (1 << (COORDINATE_BITS - 1))
    bias = np.asarray(generator.projection_bias, np.float64) + projection @ middle
    whole, scale = _whole(projection * step, bits, (1,))
    x = generator._project(jnp.asarray(z, jnp.float32)).reshape(-1, *generator._smallest())
    size, shape = _activation(np.asarray(x), top), generator._smallest()
    spread = np.broadcast_to(size, shape).reshape(-1)
    scaling = Scaling.of(scale / spread, -top, top, generator.slope)
    made: list[Layer] = [
        Dense(whole, np.round(bias / scale).astype(np.int64), scaling, shape, bits)
    ]
    out_lo = out_hi = 0.0
    from ..generators.upsample import plain_upsample

    for i, (kernel, given) in enumerate(zip(generator.kernels, generator.biases, strict=True)):
        last = i == len(generator.kernels) - 1
        y = jax.jit(plain_upsample)(x, kernel) + given
        folded = np.asarray(kernel, np.float64) * size[:, None]
        whole, scale = _whole(folded, bits, (0, 1, 2))
        offset = np.asarray(given, np.float64)
        if last:
            out_lo, out_hi, wide = _output(generator.output, np.asarray(y).reshape(len(z), -1))
            offset = offset - out_lo
            factor = scale * ((1 << wide) - 1) / (out_hi - out_lo)
            scaling = Scaling.of(factor, 0, (1 << wide) - 1)
        else:
            x = generator._leaky(y)
            size = _activation(np.asarray(x), top)
            scaling = Scaling.of(scale / size, -top, top, generator.slope)
        made.append(Upsample(whole, np.round(offset / scale).astype(np.int64), scaling, bits))
    return tuple(made), out_lo, out_hi


def _activation(x: Float[np.ndarray, "n h w c"], top: int) -> Float[np.ndarray, " c"]:
    """The scale of each channel."""
    return np.maximum(np.abs(x).max(axis=(0, 1, 2)), 1e-6) / top
