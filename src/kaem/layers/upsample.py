r"""The 4x4, stride-2 transposed convolution as few matrix products, and its plain twin.

XLA runs a transposed convolution on CPU as a convolution over an input dilated with zeros, many
times slower than the arithmetic needs. But output pixels $2j-1, 2j$ depend only on inputs
$j-1, j$: window $j$ is $y_j = x_{j-1}W_0 + x_jW_1$, with $W_d: C_i\to 4C_o$ making all the pixels of
a window at once. Two neighbours $x_0, x_1$ contribute to three windows,
$$x_0W_1,\qquad x_0W_0 + x_1W_1,\qquad x_1W_0,$$
a product of polynomials which Karatsuba's identity makes of three products instead of four, the
middle one being $(x_0+x_1)(W_0+W_1) - x_0W_1 - x_1W_0$: in two dimensions nine instead of
sixteen. The gradient in the input is the transposed identity, with transposed matrices made once
(XLA's product with a transposed right side is slow), and shares its nine operands with the
gradient in the weights.

These have axes [H, W, B, C]: moving pixels about then moves contiguous blocks. Products in a
batch run on one thread of a device, which suits updates, whose batches are split over devices. To
draw samples, one product $x\,[W_{00}\,W_{01}\,W_{10}\,W_{11}]$ on all threads and four overlapping
sums are faster, though they multiply nearly twice as much: `spread`. On GPUs and TPUs the library's
convolution is right, and `CNN` uses `plain_upsample`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Taps(NamedTuple):
    """A kernel rearranged for both directions: nine matrices each, made once for each update."""

    forward: Float[Array, "9 I 4O"]
    backward: Float[Array, "9 4O I"]


def plain_upsample(
    x: Float[Array, "B H W I"], kernel: Float[Array, "4 4 I O"]
) -> Float[Array, "B 2H 2W O"]:
    """Return the transposed convolution with stride 2 and padding 1, by the library."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=layout)


def prepare(kernel: Float[Array, "4 4 I O"]) -> Taps:
    """Rearrange a kernel; differentiable, and worth doing outside of loops."""
    taps = _taps(kernel)
    inputs, outputs = kernel.shape[2:]
    rows = jnp.stack([taps[1], taps[0], taps[0] + taps[1]])
    nine = jnp.stack([rows[:, 1], rows[:, 0], rows[:, 0] + rows[:, 1]], axis=1)
    forward = nine.reshape(9, inputs, 4 * outputs)
    return Taps(forward, jax.lax.stop_gradient(forward).transpose(0, 2, 1))


def _taps(kernel: Array) -> Float[Array, "2 2 I 4O"]:
    """Axes: row offset d, column offset d, in, (row phase, column phase, out)."""
    inputs, outputs = kernel.shape[2:]
    split = kernel.reshape(2, 2, 2, 2, inputs, outputs)[:, ::-1, :, ::-1]
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(2, 2, inputs, 4 * outputs)


def spread_matrix(kernel: Float[Array, "4 4 I O"]) -> Float[Array, "I 16O"]:
    """Return what a pixel gives to the four windows it touches."""
    return _taps(kernel).transpose(2, 0, 1, 3).reshape(kernel.shape[2], -1)


def spread(x: Float[Array, "B H W I"], matrix: Float[Array, "I 16O"]) -> Float[Array, "B 2H 2W O"]:
    """Return the transposed convolution as one product and four overlapping sums."""
    batch, height, width, inputs = x.shape
    given = (x.reshape(-1, inputs) @ matrix).reshape(batch, height, width, 2, 2, -1)
    windows = jnp.zeros((batch, height + 1, width + 1, given.shape[-1]), x.dtype)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        windows += jnp.pad(given[:, :, :, i, j], ((0, 0), (1 - i, i), (1 - j, j), (0, 0)))
    split = windows.reshape(batch, height + 1, width + 1, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5)
    return split.reshape(batch, 2 * height + 2, 2 * width + 2, -1)[:, 1:-1, 1:-1]


class Planes(NamedTuple):
    """Windows by the parity of their row and column: what the products make, before any weaving."""

    even_even: Float[Array, "h+1 w+1 B D"]
    even_odd: Float[Array, "h+1 w B D"]
    odd_even: Float[Array, "h w+1 B D"]
    odd_odd: Float[Array, "h w B D"]


def upsample(x: Float[Array, "H W B I"], taps: Taps) -> Float[Array, "2H 2W B O"]:
    """Return the transposed convolution."""
    return pixels(planes(x, taps), x.shape[0], x.shape[1])


def planes(x: Float[Array, "H W B I"], taps: Taps) -> Planes:
    """Return the transposed convolution as planes of windows; an odd height or width gets a zero line."""
    height, width = x.shape[:2]
    even = jnp.pad(x, ((0, height % 2), (0, width % 2), (0, 0), (0, 0)))
    return _planes(even, taps.forward, taps.backward)


def pixels(y: Planes, height: int, width: int) -> Float[Array, "2H 2W B O"]:
    """Make an image of planes: windows in order, depth to space, without what lies outside."""
    rows, columns, batch, depth = y.even_even.shape
    padded = [
        jnp.pad(p, ((0, rows - p.shape[0]), (0, columns - p.shape[1]), (0, 0), (0, 0))) for p in y
    ]
    # Axes: row parity, column parity, row, column, batch, row phase, column phase, channel.
    spread = jnp.stack(padded).reshape(2, 2, rows, columns, batch, 2, 2, depth // 4)
    spread = spread.transpose(2, 0, 5, 3, 1, 6, 4, 7)
    image = spread.reshape(4 * rows, 4 * columns, batch, depth // 4)
    return image[1 : 2 * height + 1, 1 : 2 * width + 1]


def from_pixels(x: Float[Array, "2H 2W B O"]) -> Planes:
    """Return an image as planes of windows, the inverse of `pixels`, with zeros outside."""
    extra = [(1, 1 + size // 2 % 2 * 2) for size in x.shape[:2]]
    padded = jnp.pad(x, (*extra, (0, 0), (0, 0)))
    height, width, batch, channels = padded.shape
    split = padded.reshape(height // 2, 2, width // 2, 2, batch, channels)
    y = split.transpose(0, 2, 4, 1, 3, 5).reshape(height // 2, width // 2, batch, 4 * channels)
    return Planes(y[::2, ::2], y[::2, 1::2], y[1::2, ::2], y[1::2, 1::2])


def _operands(x: Array) -> Array:
    """$x_0, x_1, x_0 + x_1$ of all pairs of rows, and of columns within them: nine matrices."""
    height, width, batch, channels = x.shape
    blocks = x.reshape(height // 2, 2, width // 2, 2, batch, channels)
    found = []
    for row in (blocks[:, 0], blocks[:, 1], blocks[:, 0] + blocks[:, 1]):
        found += [row[:, :, 0], row[:, :, 1], row[:, :, 0] + row[:, :, 1]]
    return jnp.stack(found).reshape(9, -1, channels)


def _combine(first: Array, second: Array, both: Array, axis: int) -> tuple[Array, Array]:
    """Even and odd windows of all pairs from their three products: overlapping ends are added."""

    def pad(x: Array, low: int, high: int) -> Array:
        return jnp.pad(x, [(low, high) if i == axis else (0, 0) for i in range(x.ndim)])

    return pad(first, 0, 1) + pad(second, 1, 0), both - first - second


def _cotangents(g: Planes) -> Array:
    """$g_0 - g_1, g_2 - g_1, g_1$ of all triples of windows: the nine operands of the gradients."""

    def triples(even: Array, odd: Array, axis: int) -> tuple[Array, Array, Array]:
        size = odd.shape[axis]
        first = jax.lax.slice_in_dim(even, 0, size, axis=axis)
        last = jax.lax.slice_in_dim(even, 1, size + 1, axis=axis)
        return first - odd, last - odd, odd

    even = triples(g.even_even, g.even_odd, 1)
    odd = triples(g.odd_even, g.odd_odd, 1)
    columns = [triples(e, o, 0) for e, o in zip(even, odd, strict=True)]
    found = [columns[j][i] for i in range(3) for j in range(3)]
    return jnp.stack(found).reshape(9, -1, g.odd_odd.shape[-1])


@jax.custom_vjp
def _planes(x: Array, forward: Array, backward: Array) -> Planes:
    height, width, batch, _ = x.shape
    products = jnp.einsum("nmc,ncd->nmd", _operands(x), forward)
    products = products.reshape(3, 3, height // 2, width // 2, batch, -1)
    first, second, both = (_combine(row[0], row[1], row[2], axis=1) for row in products)
    even_even, odd_even = _combine(first[0], second[0], both[0], axis=0)
    even_odd, odd_odd = _combine(first[1], second[1], both[1], axis=0)
    return Planes(even_even, even_odd, odd_even, odd_odd)


def _forward_rule(x: Array, forward: Array, backward: Array) -> tuple[Planes, Any]:
    return _planes(x, forward, backward), (x, backward)


def _backward_rule(saved: Any, g: Planes) -> tuple[Array, Array, None]:
    x, backward = saved
    height, width, batch, channels = x.shape
    operands = _cotangents(g)
    parts = jnp.einsum("nmd,ndc->nmc", operands, backward)
    parts = parts.reshape(3, 3, height // 2, width // 2, batch, channels)
    rows = parts[:2] + parts[2]
    both = jnp.stack([rows[:, 0] + rows[:, 2], rows[:, 1] + rows[:, 2]], axis=1)
    gx = both.transpose(2, 0, 3, 1, 4, 5).reshape(x.shape)
    return gx, jnp.einsum("nmc,nmd->ncd", _operands(x), operands), None


_planes.defvjp(_forward_rule, _backward_rule)
