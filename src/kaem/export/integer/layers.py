r"""Generators in integers: every layer is one sum of products, one bias, one scaling.

$$a = \sum_i W_i x_i + b,\qquad y = \mathrm{clip}\big((a\,M + 2^{S-1}) \gg S,\ y_{\min}, y_{\max}\big),$$
with $M$ for each output and, behind a LeakyReLU, another $M$ where $a < 0$. All numbers are integers, shifts round
towards minus infinity, and no sum exceeds 63 bits: Python, C, HLS and Verilog agree to the bit.

What flows between Kolmogorov-Arnold layers are *coordinates*, 16 bits that divide the range of an input. The basis
functions of a coordinate are tables with $2^a$ cells, read linearly; the sums multiply their values with
the weights. A convolutional layer takes and makes activations of 8 bits.

For whoever writes them down, layers of all classes say of inputs of `shape`: `made`, the shape of their outputs, `says`, a
phrase for comments, `sizes`, the numbers in templates; and of inputs up to `inputs` in size: `taken`, the range of what is
multiplied, and `bound`, what no sum exceeds, in whatever order.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

COORDINATE_BITS = 16
_SCALE_BITS = 18  # of the multipliers M
_LARGEST = 1 << 62

Integers = Int[np.ndarray, "..."]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scaling:
    """From sums to what the next layer takes."""

    multiplier: Integers  # [outputs]
    negative: Integers | None  # [outputs], where sums are negative, behind a LeakyReLU
    shift: int
    low: int
    high: int

    @staticmethod
    def of(
        factor: Float[np.ndarray, " o"], low: int, high: int, slope: float | None = None
    ) -> "Scaling":
        """Return the scaling by `factor`, its largest multiplier `_SCALE_BITS` long."""
        shift = _SCALE_BITS - 1 - int(np.floor(np.log2(np.abs(factor).max())))
        shift = int(np.clip(shift, 1, 46))
        whole = np.round(factor * 2.0**shift).astype(np.int64)
        negative = None if slope is None else np.round(slope * factor * 2.0**shift).astype(np.int64)
        return Scaling(whole, negative, shift, low, high)

    def __call__(self, sums: Integers) -> Integers:
        """Return outputs of sums whose last axis is theirs."""
        factor = self.multiplier
        if self.negative is not None:
            factor = np.where(sums < 0, self.negative, factor)
        return np.clip((sums * factor + (1 << (self.shift - 1))) >> self.shift, self.low, self.high)


def product(x: Int[np.ndarray, "n k"], weights: Int[np.ndarray, "o k"]) -> Int[np.ndarray, "n o"]:
    """Return the exact product, through doubles where they hold it."""
    bound = int(np.abs(x).max(initial=0)) * int(np.abs(weights).sum(axis=1).max(initial=0))
    if bound < 1 << 53:
        return (x.astype(np.float64) @ weights.astype(np.float64).T).astype(np.int64)
    return x.astype(np.int64) @ weights.astype(np.int64).T


@dataclass(frozen=True)
class Sum:
    """Words of latents to the coordinates of a generator, $\\sum_p z_{q,p}$."""

    weights: Int[np.ndarray, "Q P"]
    shift: int

    def __call__(self, words: Int[np.ndarray, "n L"]) -> Int[np.ndarray, "n Q"]:
        q, p = self.weights.shape
        sums = np.sum(words.reshape(-1, q, p) * self.weights, axis=2)
        top = (1 << COORDINATE_BITS) - 1
        return np.clip((sums + (1 << (self.shift - 1))) >> self.shift, 0, top)


@dataclass(frozen=True)
class Kolmogorov:
    """A Kolmogorov-Arnold layer: basis functions by table, then one product."""

    kind: ClassVar[str] = "Kolmogorov-Arnold layer"

    tables: Int[np.ndarray, "P K B"]  # K = 2^cells + 1 knots
    weights: Int[np.ndarray, "O P B"]
    bias: Int[np.ndarray, " O"]
    scaling: Scaling
    cells: int  # their logarithm
    bits: int  # of tables and weights

    def features(self, coordinates: Int[np.ndarray, "n P"]) -> Int[np.ndarray, "n P B"]:
        """Return the basis functions at coordinates."""
        rest = COORDINATE_BITS - self.cells
        k = coordinates >> rest
        r = (coordinates & ((1 << rest) - 1))[..., None]
        row = np.arange(len(self.tables))
        left, right = self.tables[row, k], self.tables[row, k + 1]
        return (left * ((1 << rest) - r) + right * r + (1 << (rest - 1))) >> rest

    def sums(self, coordinates: Int[np.ndarray, "n P"]) -> Int[np.ndarray, "n O"]:
        n, outputs = len(coordinates), len(self.weights)
        flat = self.features(coordinates).reshape(n, -1)
        return product(flat, self.weights.reshape(outputs, -1)) + self.bias

    def __call__(self, coordinates: Int[np.ndarray, "n P"]) -> Int[np.ndarray, "n O"]:
        return self.scaling(self.sums(coordinates))

    @property
    def bytes(self) -> int:
        return (self.tables.size + self.weights.size) * self.bits // 8 + 8 * len(self.bias)

    def made(self, shape: Shape) -> Shape:
        del shape
        return (len(self.bias),)

    def says(self, shape: Shape) -> str:
        outputs, parts, functions = self.weights.shape
        return f"{parts} coordinates, {functions} functions of each, {outputs} sums"

    def sizes(self, shape: Shape) -> dict[str, int]:
        rest, (_, parts, functions) = COORDINATE_BITS - self.cells, self.weights.shape
        cell = {"rest": rest, "mask": (1 << rest) - 1, "cell": 1 << rest, "half": 1 << (rest - 1)}
        return {"P": parts, "B": functions, **cell}

    def taken(self, inputs: int) -> tuple[int, int]:
        largest = int(np.abs(self.tables).max())
        return -largest, largest

    def bound(self, inputs: int) -> int:
        largest = np.abs(self.tables).max(axis=1)  # of each function: cells are read between knots
        return _largest(np.sum(np.abs(self.weights) * largest, axis=(1, 2)), self.bias)


@dataclass(frozen=True)
class Dense:
    """Coordinates or activations to activations: those of another dense layer, or the smallest image."""

    kind: ClassVar[str] = "Dense layer"
    tables: ClassVar[None] = None

    weights: Int[np.ndarray, "D Q"]
    bias: Int[np.ndarray, " D"]
    scaling: Scaling
    shape: Shape  # of what is made: [h, w, channels], or [D]
    bits: int
    centre: int  # of its inputs: the middle of coordinates, or the 0 of activations

    def __call__(self, inputs: Int[np.ndarray, "n Q"]) -> Int[np.ndarray, "n ..."]:
        made = self.scaling(product(inputs - self.centre, self.weights) + self.bias)
        return made.reshape(-1, *self.shape)

    @property
    def bytes(self) -> int:
        return self.weights.size * self.bits // 8 + 4 * len(self.bias)

    def made(self, shape: Shape) -> Shape:
        return self.shape

    def says(self, shape: Shape) -> str:
        given = "coordinates" if self.centre else "activations"
        made = f"an image of {by(self.shape)}" if len(self.shape) == 3 else f"{self.shape[0]}"
        return f"{shape[0]} {given} to {made}"

    def sizes(self, shape: Shape) -> dict[str, int]:
        return {"P": shape[0], "centre": self.centre}

    def taken(self, inputs: int) -> tuple[int, int]:
        return -inputs, inputs - (self.centre > 0)

    def bound(self, inputs: int) -> int:
        return _largest(np.abs(self.weights).sum(axis=1) * inputs, self.bias)


@dataclass(frozen=True)
class Upsample:
    """A 4x4, stride-2 transposed convolution, padded by one.

    Output row y sees input rows (y + k - 2)/2 for those k of 0..3 that make it whole: k = 0 and 2 for even y, 1
    and 3 for odd.
    """

    kind: ClassVar[str] = "Transposed convolution"
    tables: ClassVar[None] = None

    kernel: Int[np.ndarray, "4 4 I O"]
    bias: Int[np.ndarray, " O"]
    scaling: Scaling
    bits: int

    def __call__(self, x: Int[np.ndarray, "n h w I"]) -> Int[np.ndarray, "n 2h 2w O"]:
        n, h, w, inputs = x.shape
        outputs = len(self.bias)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        made = np.empty((n, 2 * h, 2 * w, outputs), np.int64)
        for py, px in np.ndindex(2, 2):
            # Row i of phase py sees padded rows i + py and i + py + 1, through taps py and py + 2.
            total: Integers = np.zeros((n * h * w, outputs), np.int64)
            for dy, dx in np.ndindex(2, 2):
                part = padded[:, py + dy : py + dy + h, px + dx : px + dx + w]
                tap = self.kernel[py + 2 * dy, px + 2 * dx]
                total = total + product(part.reshape(-1, inputs), tap.T)
            made[:, py::2, px::2] = (total + self.bias).reshape(n, h, w, outputs)
        return self.scaling(made)

    @property
    def bytes(self) -> int:
        return self.kernel.size * self.bits // 8 + 4 * len(self.bias)

    def made(self, shape: Shape) -> Shape:
        return (2 * shape[0], 2 * shape[1], len(self.bias))

    def says(self, shape: Shape) -> str:
        return f"{by(shape)} to {by(self.made(shape))}"

    def sizes(self, shape: Shape) -> dict[str, int]:
        return upsample_sizes(shape, len(self.bias))

    def taken(self, inputs: int) -> tuple[int, int]:
        return -inputs, inputs

    def bound(self, inputs: int) -> int:
        # An output pixel sees every second row and column of the kernel; this is for all of them.
        return _largest(np.abs(self.kernel).sum(axis=(0, 1, 2)) * inputs, self.bias)


def _largest(sums: Integers, bias: Integers) -> int:
    return int((sums + np.abs(bias)).max())


def by(shape: Shape) -> str:
    """Return a shape in words, such as `8 x 8 x 1`."""
    return " x ".join(str(size) for size in shape)


def upsample_sizes(shape: Shape, outputs: int) -> dict[str, int]:
    """Return what a transposed convolution in C has of everything, from an image [h, w, P]."""
    height, width, parts = shape
    return {
        "P": parts,
        "O": outputs,
        "h": height,
        "w": width,
        "pixels": math.prod(shape),
        "outputs": 4 * height * width * outputs,
        "tall": 2 * height,
        "wide": 2 * width,
        "columns": 2 * width + 2,
        "line": 2 * width * outputs,
        "width": 16 * outputs,
        "span": 4 * outputs,
    }


Layer = Kolmogorov | Dense | Upsample
