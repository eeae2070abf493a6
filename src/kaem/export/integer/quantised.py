"""A model in integers: 16 bits of every quantile in, an image of bytes out.

Ranges are calibrated on samples. In a Kolmogorov-Arnold generator the inner layers, a small part of its weights, have words of
16 bits and the last layer of 8: what an inner layer rounds, the functions behind it magnify. In a convolutional one
all weights and activations have 8 bits, with a scale for each channel.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ...models import KAEM, AbstractModel
from ..target import way_of
from .generators import GENERATORS, LOGITS, OUTPUT_BITS, TOP, Calibration
from .layers import COORDINATE_BITS, Layer, Sum
from .stream import quantiles
from .tables import U_BITS, Addressing, Tables, quantise_prior


@dataclass(frozen=True)
class Quantised:
    """Everything that a target needs, in integers."""

    tables: Tables
    sum: Sum
    layers: tuple[Layer, ...]
    sigmoid: Int[np.ndarray, " 4096"] | None  # codes to bytes; None: codes are the output
    lo: float  # what the codes of an output without a sigmoid stand for
    hi: float
    data_shape: tuple[int, ...]
    model: KAEM | None = None  # what was quantised, its tables exact

    def generate(self, u: Int[np.ndarray, "n L"]) -> Int[np.ndarray, "n ..."]:
        """Return the bytes (codes of 16 bits without a sigmoid) of quantiles of 16 bits: the reference."""
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
        """Return an image for each seed, through `quantiles`."""
        return self.generate(quantiles(seeds, len(self.tables.words)))

    def stream(self, seed: int, samples: int) -> Int[np.ndarray, "n ..."]:
        """Return successive images of one stream, of which the first is that of its seed."""
        return self.generate(quantiles(np.array([seed]), samples * len(self.tables.words)))

    def data(self, codes: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return what integers of the output stand for."""
        if self.sigmoid is not None:
            return codes / 255
        return self.lo + (self.hi - self.lo) * codes / TOP

    @property
    def pixel(self) -> str:
        """The type of C of one number of the output."""
        return "uint8_t" if self.sigmoid is not None else "uint16_t"

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes of the prior's tables, and of the generator's tables and weights."""
        table = 0 if self.sigmoid is None else len(self.sigmoid)
        return {
            "prior": self.tables.bytes,
            "generator": table + sum(layer.bytes for layer in self.layers),
        }

    def inputs(self, i: int) -> int:
        """Return what no input of layer `i`, counted from 0, exceeds in size."""
        if i == 0:
            return 1 << (COORDINATE_BITS - 1)
        before = self.layers[i - 1].scaling
        return max(abs(before.low), abs(before.high))


def quantise(model: AbstractModel, **settings: Any) -> Quantised:
    """Return a model in integers; `settings` are those of `in_integers`."""
    return in_integers(model.readable("export"), **settings)


def in_integers(
    model: KAEM,
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
    """Return a model whose tables are exact in integers.

    **Arguments:** `entries`, `bits`, `interpolate` and `addressing` are those of the prior's tables; `inner_bits` are the
    words of inner Kolmogorov-Arnold layers, `weight_bits` those of all others; ranges are calibrated on
    `samples` draws. Without `generator` only the prior is quantised.
    """
    for name, value in (("inner_bits", inner_bits), ("weight_bits", weight_bits)):
        if not 4 <= value <= 16:
            raise ValueError(f"{name} must be from 4 to 16, got {value}.")
    tables = quantise_prior(
        model.prior, entries=entries, bits=bits, interpolate=interpolate, addressing=addressing
    )
    total, lo, hi = _sum(tables)
    if not generator:
        return Quantised(tables, total, (), None, 0.0, 0.0, (), model)
    decoder: Any = model.generator
    quantised = way_of(GENERATORS, decoder)
    u = np.random.default_rng(seed).integers(0, 1 << U_BITS, (samples, len(tables.words)))
    z = tables.latents(tables.look_up(u)).reshape(samples, len(lo), -1).sum(axis=2)
    layers, out_lo, out_hi = quantised(decoder, Calibration(z, lo, hi, inner_bits, weight_bits))
    sigmoid = None
    if decoder.range == "sigmoid":
        logits = np.linspace(-LOGITS, LOGITS, 1 << OUTPUT_BITS)
        sigmoid = np.round(255 / (1 + np.exp(-logits))).astype(np.int64)
    shape = tuple(model.data_shape)
    return Quantised(tables, total, layers, sigmoid, out_lo, out_hi, shape, model)


def _sum(tables: Tables) -> tuple[Sum, Float[np.ndarray, " Q"], Float[np.ndarray, " Q"]]:
    """Return words to coordinates, and the range that these divide: all that words can reach."""
    q = tables.shape[0]
    lo, hi = tables.lo.reshape(q, -1).sum(axis=1), tables.hi.reshape(q, -1).sum(axis=1)
    step = (tables.hi - tables.lo).reshape(q, -1) / ((1 << tables.bits) - 1)
    shift = COORDINATE_BITS
    weights = np.round(step * TOP / (hi - lo)[:, None] * (1 << shift)).astype(np.int64)
    return Sum(weights, shift), lo, hi
