r"""Convolutions that are fast on CPU in both directions, and their plain twin.

XLA's forward convolution runs on CPU as fast as a matrix product, and so does the gradient in the
image with stride 1, a convolution too. The gradient in the kernel does not: its window is the whole
image. Here it is Winograd's $F(2, 3)$: with the inputs $d$ in rows of four, the outputs' gradients
$g$ in pairs and
$$V = (d_0-d_2,\; d_1+d_2,\; d_2-d_1,\; d_1-d_3),\qquad G = (g_0,\; g_0+g_1,\; g_0-g_1,\; -g_1),$$
the four products $u_k = \sum V_k G_k$ make the three taps, in two dimensions sixteen products
instead of thirty-six. A batch goes through in groups of images that fit the caches.

With stride 2, or few channels, one matrix product of all taps is faster than the library and its
gradients; a 4x4 convolution is then a 2x2 convolution of 2x2 blocks.
Images are NHWC, and padded with one line of zeros all around.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_GROUP = 2**17  # numbers in a group's wider image; the products' operands have four times as many
_NARROW = 16  # with fewer channels rearranging costs more than the products

Image = Float[Array, "n H W C"]


def plain_convolution(
    x: Float[Array, "n H W I"], kernel: Float[Array, "k k I O"], stride: int
) -> Float[Array, "n h w O"]:
    """Return the convolution by the library: for GPUs, and the twin in tests."""
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv3x3(
    x: Float[Array, "n H W I"], kernel: Float[Array, "3 3 I O"], stride: int = 1
) -> Float[Array, "n h w O"]:
    """Return a 3x3 convolution with stride 1 or 2."""
    _, height, width, _ = x.shape
    if jax.default_backend() != "cpu":
        return plain_convolution(x, kernel, stride)
    if stride == 2 or min(kernel.shape[2:]) < _NARROW:
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        starts = [(i, j) for i in range(3) for j in range(3)]
        taps = [padded[:, i : i + height : stride, j : j + width : stride] for i, j in starts]
        return jnp.concatenate(taps, axis=-1) @ kernel.reshape(-1, kernel.shape[3])
    if height % 2 or width % 2:
        return plain_convolution(x, kernel, 1)
    return _conv3x3(x, kernel)


def downsample4x4(
    x: Float[Array, "n H W I"], kernel: Float[Array, "4 4 I O"]
) -> Float[Array, "n H/2 W/2 O"]:
    """Return a 4x4 convolution with stride 2, of even heights and widths."""
    n, height, width, inputs = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"only images of even size can be halved, got {height} x {width}.")
    if jax.default_backend() != "cpu":
        return plain_convolution(x, kernel, 2)
    rows, columns = height // 2, width // 2
    # Axes: block row, block column, (row in block, column in block, in), out.
    matrix = kernel.reshape(2, 2, 2, 2, inputs, -1).transpose(0, 2, 1, 3, 4, 5)
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    blocks = padded.reshape(n, rows + 1, 2, columns + 1, 2, inputs).transpose(0, 1, 3, 2, 4, 5)
    blocks = blocks.reshape(n, rows + 1, columns + 1, 4 * inputs)
    near = [blocks[:, i : i + rows, j : j + columns] for i in (0, 1) for j in (0, 1)]
    return jnp.concatenate(near, axis=-1) @ matrix.reshape(16 * inputs, -1)


@jax.custom_vjp
def _conv3x3(x: Image, kernel: Float[Array, "3 3 I O"]) -> Image:
    return plain_convolution(x, kernel, 1)


def _forward_rule(x: Image, kernel: Array) -> tuple[Image, Any]:
    return plain_convolution(x, kernel, 1), (x, kernel)


def _backward_rule(saved: Any, g: Image) -> tuple[Image, Array]:
    x, kernel = saved
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    return plain_convolution(g, flipped, 1), _kernel_gradient(x, g)


_conv3x3.defvjp(_forward_rule, _backward_rule)


def _kernel_gradient(
    x: Float[Array, "n H W I"], g: Float[Array, "n H W O"]
) -> Float[Array, "3 3 I O"]:
    n, inputs, outputs = len(x), x.shape[-1], g.shape[-1]
    numbers = max(x.size, g.size) // n
    size = max(s for s in range(1, n + 1) if n % s == 0 and (s == 1 or s * numbers <= _GROUP))

    def add(total: Array, group: tuple[Image, Image]) -> tuple[Array, None]:
        x, g = group
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        products = jnp.einsum("kmi,kmo->kio", _sixteen(_rows, padded), _sixteen(_pairs, g))
        return total + products, None

    def groups(x: Image) -> Float[Array, "groups size H W C"]:
        return x.reshape(n // size, size, *x.shape[1:])

    u, _ = jax.lax.scan(add, jnp.zeros((16, inputs, outputs)), (groups(x), groups(g)))
    columns = [jnp.stack(_taps(list(u[i : i + 4]))) for i in range(0, 16, 4)]
    return jnp.stack(_taps(columns))


def _sixteen(transform: Callable[[Array, int], list[Array]], x: Image) -> Float[Array, "16 m C"]:
    found = [b for a in transform(x, 1) for b in transform(a, 2)]
    return jnp.stack(found).reshape(16, -1, x.shape[-1])


def _rows(x: Array, axis: int) -> list[Array]:
    size = x.shape[axis] - 3
    d = [jax.lax.slice_in_dim(x, i, i + size, 2, axis) for i in range(4)]
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _pairs(g: Array, axis: int) -> list[Array]:
    first, second = (jax.lax.slice_in_dim(g, i, None, 2, axis) for i in (0, 1))
    return [first, first + second, first - second, -second]


def _taps(u: Sequence[Array]) -> list[Array]:
    return [u[0] + (u[1] + u[2]) / 2, (u[1] - u[2]) / 2, (u[1] + u[2]) / 2 + u[3]]
