"""Quantised models of random integers, extremes included: what every target of an export must agree on."""

import numpy as np

from kaem.export import Quantised
from kaem.export.integer.layers import Dense, Kolmogorov, Scaling, Sum, Upsample
from kaem.export.integer.tables import Tables, _segments


def random_tables(rng, shape, *, entries=64, bits=16, interpolate=True, addressing="uniform"):
    segments = _segments(entries, interpolate, addressing)
    latents = int(np.prod(shape))
    width = sum((1 << segment.cells) + interpolate for segment in segments)
    words = rng.integers(0, 1 << bits, (latents, width))
    words[:, :2] = 0, (1 << bits) - 1
    ends = np.sort(rng.normal(size=(2, latents)), axis=0)
    return Tables(words, *ends, shape, bits, interpolate, segments)


def random_sum(rng, tables):
    """Parts of each coordinate that reach the top together, and a little more."""
    coordinates = tables.shape[0]
    share = rng.dirichlet(np.ones(len(tables.words) // coordinates), coordinates)
    return Sum(np.ceil(share * 65535 / ((1 << tables.bits) - 1) * 65536).astype(np.int64), 16)


def integers(rng, bits, *shape):
    """Of both signs and with many zeros; the first of the last axis are all as large as they can be."""
    top = (1 << (bits - 1)) - 1
    values = rng.integers(-top, top + 1, shape) * (rng.random(shape) < 0.6)
    values[0] = top
    return values


def random_scaling(rng, outputs, spread, low, high, slope=None):
    """What brings sums of about `spread` into the range, with an overflow at times."""
    return Scaling.of(rng.uniform(0.5, 1.5, outputs) * (high - low) / spread, low, high, slope)


def random_kan(seed, shape=(2, 4, 1), bits=(16, 8), sigmoid=True, functions=6, **tables):
    rng = np.random.default_rng(seed)
    prior = random_tables(rng, (3, 2), **tables)
    layers, inputs, size = [], 3, int(np.prod(shape))
    for i, (outputs, wide) in enumerate(((5, 16), (size, 12 if sigmoid else 16))):
        top = (1 << (bits[i] - 1)) - 1
        knots = integers(rng, bits[i], inputs, 17, functions)
        spread = 2.0 * top**2 * np.sqrt(inputs * functions)
        scaling = random_scaling(rng, outputs, spread, 0, (1 << wide) - 1)
        bias = rng.integers(0, int(spread), outputs)
        weights = integers(rng, bits[i], outputs, inputs, functions)
        layers.append(Kolmogorov(knots, weights, bias, scaling, 4, bits[i]))
        inputs = outputs
    return _quantised(rng, prior, layers, sigmoid, shape)


def random_dense(rng, bits, inputs, shape, centre):
    """From coordinates around their middle, or from activations."""
    size, top = int(np.prod(shape)), (1 << (bits - 1)) - 1
    spread = float((centre or top) * top * inputs**0.5)
    scaling = random_scaling(rng, size, spread, -top, top, 0.2)
    bias = rng.integers(-int(spread), int(spread), size)
    return Dense(integers(rng, bits, size, inputs), bias, scaling, shape, bits, centre)


def random_cnn(seed, shape=(8, 12, 3), widths=(6, 5), bits=8, sigmoid=True, hidden=(), **tables):
    rng = np.random.default_rng(seed)
    prior = random_tables(rng, (4,), **tables)
    top, doublings = (1 << (bits - 1)) - 1, 2 ** len(widths)
    smallest = (shape[0] // doublings, shape[1] // doublings, widths[0])
    layers, inputs, centre = [], 4, 32768
    for made in (*((size,) for size in hidden), smallest):
        layers.append(random_dense(rng, bits, inputs, made, centre))
        inputs, centre = made[0], 0
    sizes = [*widths, shape[2]]
    for i in range(len(widths)):
        last, spread = i == len(widths) - 1, 2.0 * top**2 * np.sqrt(4 * sizes[i])
        bias = rng.integers(-int(spread), int(spread), sizes[i + 1])
        low, high = (0, (1 << (12 if sigmoid else 16)) - 1) if last else (-top, top)
        scaling = random_scaling(rng, sizes[i + 1], spread, low, high, None if last else 0.2)
        layers.append(Upsample(integers(rng, bits, 4, 4, *sizes[i : i + 2]), bias, scaling, bits))
    return _quantised(rng, prior, layers, sigmoid, shape)


def _quantised(rng, prior, layers, sigmoid, shape):
    codes = np.sort(rng.integers(0, 256, 4096)) if sigmoid else None
    return Quantised(prior, random_sum(rng, prior), tuple(layers), codes, -1.5, 2.5, shape)


# Tables of every kind, sums of 32 and of 64 bits, activations of 8 and of 16, bytes and codes.
MODELS = {
    "kan": lambda: random_kan(0),
    "kan-16-bits": lambda: random_kan(
        1, (9,), (16, 16), sigmoid=False, addressing="tails", entries=32
    ),
    "cnn": lambda: random_cnn(2, interpolate=False, bits=8),
    "cnn-16-bits": lambda: random_cnn(
        3, (4, 4, 1), (17,), bits=16, sigmoid=False, interpolate=False, addressing="tails"
    ),
    "cnn-hidden": lambda: random_cnn(13, hidden=(7, 9)),
    "cnn-hidden-16-bits": lambda: random_cnn(
        13, (4, 4, 1), (3,), bits=16, sigmoid=False, hidden=(5,)
    ),
}
