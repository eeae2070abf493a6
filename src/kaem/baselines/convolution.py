r"""Convolutions that are fast on CPU in both directions, and their plain twin.

XLA's gradients of a convolution are slow on CPU: in the kernel because its window is then the whole
image, and with stride 2 because operands are dilated with zeros. Matrix products are fast, as long
as their operands stay in the caches: batches go through in groups of a few images.

- 3x3 with stride 1 is Winograd's $F(2, 3)$: two outputs of a row of four inputs $d$ need four
  products instead of six, $(d_0-d_2)g_0$, $(d_1+d_2)\frac{g_0+g_1+g_2}2$,
  $(d_2-d_1)\frac{g_0-g_1+g_2}2$, $(d_1-d_3)g_2$; in two dimensions sixteen instead of thirty-six.
- 4x4 with stride 2 is a 2x2 convolution of 2x2 blocks, and so one product; 3x3 with stride 2 is
  that with a line of zeros in the kernel.

Images are NHWC, and padded with one line of zeros all around.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_GROUP = 2**17  # numbers in a group's widest image, of which the products have four times as many
_NARROW = 16  # below so many channels rearranging costs more than the products

Image = Float[Array, "n H W C"]


def plain_convolution(
    x: Float[Array, "n H W I"], kernel: Float[Array, "k k I O"], stride: int
) -> Float[Array, "n h w O"]:
    """By the library: for GPUs, and the twin in tests."""
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv3x3(
    x: Float[Array, "n H W I"], kernel: Float[Array, "3 3 I O"], stride: int = 1
) -> Float[Array, "n h w O"]:
    """A 3x3 convolution; with stride 2, of even heights and widths."""
    if jax.default_backend() != "cpu" or (stride == 1 and min(kernel.shape[2:]) < _NARROW):
        return plain_convolution(x, kernel, stride)
    if stride == 2:
        return downsample4x4(x, jnp.pad(kernel, ((0, 1), (0, 1), (0, 0), (0, 0))))
    _, height, width, _ = x.shape
    even = jnp.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    return _winograd(even, kernel)[:, :height, :width]


def downsample4x4(
    x: Float[Array, "n H W I"], kernel: Float[Array, "4 4 I O"]
) -> Float[Array, "n H/2 W/2 O"]:
    """A 4x4 convolution with stride 2, of even heights and widths."""
    if jax.default_backend() != "cpu":
        return plain_convolution(x, kernel, 2)
    _, height, width, inputs = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"only even images can be halved, got {height} x {width}.")
    # Axes: block row, block column, (row in block, column in block, in), out.
    blocks = kernel.reshape(2, 2, 2, 2, inputs, -1).transpose(0, 2, 1, 3, 4, 5)
    matrix = blocks.reshape(16 * inputs, -1)

    @jax.checkpoint
    def some(x: Image) -> Image:
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        split = padded.reshape(len(x), height // 2 + 1, 2, width // 2 + 1, 2, inputs)
        deep = split.transpose(0, 1, 3, 2, 4, 5).reshape(*split.shape[:2], split.shape[3], -1)
        rows, columns = height // 2, width // 2
        near = [deep[:, i : i + rows, j : j + columns] for i in (0, 1) for j in (0, 1)]
        return jnp.concatenate(near, axis=-1) @ matrix

    groups = _groups(x, x.size // len(x))
    return jax.lax.map(some, groups).reshape(len(x), height // 2, width // 2, -1)


def _groups(x: Image, numbers: int) -> Float[Array, "groups size H W C"]:
    """A batch in groups of equal size, of images with that many numbers."""
    n = len(x)
    size = max(s for s in range(1, n + 1) if n % s == 0 and (s == 1 or s * numbers <= _GROUP))
    return x.reshape(n // size, size, *x.shape[1:])


@jax.custom_vjp
def _winograd(x: Image, kernel: Float[Array, "3 3 I O"]) -> Image:
    taps = jnp.concatenate(_both(_of_kernel, kernel, 0, 1)).reshape(16, *kernel.shape[2:])
    _, height, width, _ = x.shape

    def some(x: Image) -> Image:
        products = jnp.einsum("kmi,kio->kmo", _inputs(x), taps)
        products = products.reshape(16, len(x), height // 2, width // 2, -1)
        rows = [_outputs(products[i : i + 4]) for i in range(0, 16, 4)]
        corners = [_outputs(column) for column in zip(*rows, strict=True)]
        # Axes: column phase, row phase, image, row, column, channel.
        spread = jnp.stack([jnp.stack(column) for column in corners])
        return spread.transpose(2, 3, 1, 4, 0, 5).reshape(len(x), height, width, -1)

    made = jax.lax.map(some, _groups(x, height * width * max(kernel.shape[2:])))
    return made.reshape(*x.shape[:3], -1)


def _forward_rule(x: Image, kernel: Array) -> tuple[Image, Any]:
    return _winograd(x, kernel), (x, kernel)


def _backward_rule(saved: Any, g: Image) -> tuple[Image, Array]:
    x, kernel = saved
    _, height, width, inputs = x.shape
    numbers = height * width * max(kernel.shape[2:])

    def add(total: Array, group: tuple[Image, Image]) -> tuple[Array, None]:
        x, g = group
        spread = jnp.stack(_both(_of_outputs, g, 1, 2)).reshape(16, -1, g.shape[-1])
        return total + jnp.einsum("kmi,kmo->kio", _inputs(x), spread), None

    zero = jnp.zeros((16, inputs, kernel.shape[3]))
    taps, _ = jax.lax.scan(add, zero, (_groups(x, numbers), _groups(g, numbers)))
    columns = [jnp.stack(_to_kernel(taps[i : i + 4])) for i in range(0, 16, 4)]
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    return _winograd(g, flipped), jnp.stack(_to_kernel(columns))


_winograd.defvjp(_forward_rule, _backward_rule)


def _both(
    transform: Callable[[Array, int], list[Array]], x: Array, row_axis: int, column_axis: int
) -> list[Array]:
    """A transform of four results in both directions: sixteen."""
    return [b for a in transform(x, row_axis) for b in transform(a, column_axis)]


def _inputs(x: Image) -> Float[Array, "16 m I"]:
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.stack(_both(_of_inputs, padded, 1, 2)).reshape(16, -1, x.shape[-1])


def _of_inputs(x: Array, axis: int) -> list[Array]:
    last = x.shape[axis] - 3
    d = [jax.lax.slice_in_dim(x, i, i + last, 2, axis) for i in range(4)]
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _of_kernel(kernel: Array, axis: int) -> list[Array]:
    g = [jax.lax.slice_in_dim(kernel, i, i + 1, axis=axis) for i in range(3)]
    return [g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]]


def _outputs(m: Sequence[Array] | Array) -> tuple[Array, Array]:
    return m[0] + m[1] + m[2], m[1] - m[2] - m[3]


def _of_outputs(g: Array, axis: int) -> list[Array]:
    """The transpose of `_outputs`."""
    a, b = (jax.lax.slice_in_dim(g, i, None, 2, axis) for i in (0, 1))
    return [a, a + b, a - b, -b]


def _to_kernel(u: Sequence[Array] | Array) -> list[Array]:
    """The transpose of `_of_kernel`."""
    return [u[0] + (u[1] + u[2]) / 2, (u[1] - u[2]) / 2, (u[1] + u[2]) / 2 + u[3]]
