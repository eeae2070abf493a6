r"""The 4x4, stride-2 transposed convolution, as matrix products.

XLA runs a transposed convolution on CPU as a convolution over an input dilated with zeros, many
times slower than the arithmetic needs. But output pixels $2j-1, 2j$ depend on inputs $j-1, j$
only. With the kernel split by input offset, $W_{di,dj}: C_i \to 4C_o$ makes all four output
pixels of a window at once,
$$y_j = \sum_{di,dj\in\{0,1\}} x_{j-1+d}\,W_{di,dj},$$
four GEMMs of shape $[BHW, C_i]\times[C_i, 4C_o]$, shifted by padding and added, then
depth-to-space. The gradient in the input is the mirror image, with the transposed taps made
once: XLA's product with a transposed right side runs at half the speed. On GPUs and TPUs the
library's convolution is right; `upsample` chooses, and `plain_upsample` is its twin in tests.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_OFFSETS = ((0, 0), (0, 1), (1, 0), (1, 1))
_LAYOUT = ("NHWC", "HWIO", "NHWC")


class Taps(NamedTuple):
    """A kernel, and its rearrangements for both directions: made once for each update."""

    kernel: Float[Array, "4 4 I O"]
    forward: tuple[Float[Array, "I 4O"], ...] | None
    backward: tuple[Float[Array, "4O I"], ...] | None


def prepare(kernel: Float[Array, "4 4 I O"]) -> Taps:
    """Rearrange a kernel for `upsample`; differentiable, and worth doing outside of loops."""
    if jax.default_backend() != "cpu":
        return Taps(kernel, None, None)
    ci, co = kernel.shape[2:]
    split = kernel.reshape(2, 2, 2, 2, ci, co)[:, ::-1, :, ::-1]  # di, row phase, dj, column phase
    forward = split.transpose(0, 2, 4, 1, 3, 5).reshape(4, ci, 4 * co)
    backward = jax.lax.stop_gradient(split).transpose(0, 2, 1, 3, 5, 4).reshape(4, 4 * co, ci)
    return Taps(kernel, tuple(forward), tuple(backward))


def upsample(x: Float[Array, "B H W I"], taps: Taps) -> Float[Array, "B 2H 2W O"]:
    """Transposed convolution with a 4x4 kernel, stride 2 and padding 1."""
    if taps.forward is None:
        return plain_upsample(x, taps.kernel)
    return _upsample(x, taps.forward, taps.backward)


def plain_upsample(
    x: Float[Array, "B H W I"], kernel: Float[Array, "4 4 I O"]
) -> Float[Array, "B 2H 2W O"]:
    """The same by the library."""
    return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_LAYOUT)


@jax.custom_vjp
def _upsample(x: Array, forward: Any, backward: Any) -> Array:
    batch, height, width, channels = x.shape
    flat = x.reshape(-1, channels)
    if forward[0].shape[1] <= 32:  # narrow: one product is faster than four
        joined = (flat @ jnp.concatenate(forward, axis=1)).reshape(batch, height, width, 4, -1)
        parts = [joined[..., i, :] for i in range(4)]
    else:
        parts = [(flat @ tap).reshape(batch, height, width, -1) for tap in forward]
    windows = jnp.zeros(())
    for (di, dj), part in zip(_OFFSETS, parts, strict=True):
        windows += jnp.pad(part, ((0, 0), (1 - di, di), (1 - dj, dj), (0, 0)))
    pixels = windows.reshape(batch, height + 1, width + 1, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5)
    return pixels.reshape(batch, 2 * height + 2, 2 * width + 2, -1)[:, 1:-1, 1:-1]


def _forward_rule(x: Array, forward: Any, backward: Any) -> tuple[Array, Any]:
    return _upsample(x, forward, backward), (x, backward)


def _backward_rule(saved: Any, g: Array) -> tuple[Array, Any, None]:
    x, backward = saved
    batch, height, width, channels = x.shape
    padded = jnp.pad(g, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = padded.reshape(batch, height + 1, 2, width + 1, 2, -1).transpose(0, 1, 3, 2, 4, 5)
    windows = windows.reshape(batch, height + 1, width + 1, -1)
    parts = [
        windows[:, 1 - di : 1 - di + height, 1 - dj : 1 - dj + width].reshape(-1, 4 * g.shape[-1])
        for di, dj in _OFFSETS
    ]
    gx = jnp.zeros(())
    for part, tap in zip(parts, backward, strict=True):
        gx += part @ tap
    flat = x.reshape(-1, channels)
    return gx.reshape(x.shape), tuple(flat.T @ part for part in parts), None


_upsample.defvjp(_forward_rule, _backward_rule)
