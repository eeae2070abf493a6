r"""The UNet that predicts noise (Tables svhn-ddpm and celeba-ddpm).

Widths $c_0,\dots,c_L$: an image is halved $L$ times, DownBlock $i$ having $c_i$ channels, and doubled
$L$ times, each time next to what the way down left at that size. The time enters every block
between its two convolutions. Images are NHWC.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..initialise import as_array, host_rng
from .convolution import conv3x3
from .upsample import plain_upsample, prepare, upsample

_GROUPS = 8  # at most
_EPSILON = 1e-5

Image = Float[Array, "n H W C"]
Embedding = Float[Array, "#n E"]


def timestep_embedding(t: Int[Array, " n"], size: int) -> Float[Array, "n size"]:
    """Return sines, then cosines, of t times `size` / 2 frequencies that fall from 1 to 1/10000."""
    frequencies = np.geomspace(1, 1e-4, size // 2)
    angles = t[:, None] * jnp.asarray(frequencies, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


class Dense(eqx.Module):
    """A linear map of the last axis: on images, a 1x1 convolution."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"]

    @classmethod
    def init(cls, inputs: int, outputs: int, rng: np.random.Generator, scale: float = 1) -> Self:
        weight = rng.normal(0, scale / inputs**0.5, (inputs, outputs))
        return cls(as_array(weight), as_array(np.zeros(outputs)))

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        return x @ self.weight + self.bias


class Convolution(eqx.Module):
    """3x3, with stride 1 or 2."""

    kernel: Float[Array, "3 3 I O"]
    bias: Float[Array, " O"]
    stride: int = eqx.field(static=True, default=1)

    @classmethod
    def init(cls, inputs: int, outputs: int, rng: np.random.Generator, stride: int = 1) -> Self:
        kernel = rng.normal(0, (9 * inputs) ** -0.5, (3, 3, inputs, outputs))
        return cls(as_array(kernel), as_array(np.zeros(outputs)), stride)

    def __call__(self, x: Image) -> Image:
        return conv3x3(x, self.kernel, self.stride) + self.bias


class GroupNorm(eqx.Module):
    """Mean 0 and variance 1 over pixels and groups of channels, then a scale and offset each."""

    scale: Float[Array, " C"]
    offset: Float[Array, " C"]

    @classmethod
    def init(cls, channels: int) -> Self:
        return cls(as_array(np.ones(channels)), as_array(np.zeros(channels)))

    @property
    def groups(self) -> int:
        """Return as many as divide the channels, at most 8."""
        channels = len(self.scale)
        return max(g for g in range(1, _GROUPS + 1) if channels % g == 0)

    def __call__(self, x: Image) -> Image:
        centred = x - self._group_means(x)
        variance = self._group_means(centred**2)
        return centred * (self.scale * jax.lax.rsqrt(variance + _EPSILON)) + self.offset

    def _group_means(self, x: Image) -> Float[Array, "n 1 1 C"]:
        # Pixels first: channels stay the innermost axis, which vectorises.
        means = jnp.mean(x, axis=(1, 2)).reshape(len(x), self.groups, -1)
        means = jnp.repeat(jnp.mean(means, axis=2), x.shape[-1] // self.groups, axis=1)
        return means[:, None, None]


class Block(eqx.Module):
    """Convolution, GroupNorm and GELU twice, with a projection of the time added in between."""

    first: Convolution
    first_norm: GroupNorm
    time: Dense
    second: Convolution
    second_norm: GroupNorm

    @classmethod
    def init(cls, inputs: int, outputs: int, embedding: int, rng: np.random.Generator) -> Self:
        return cls(
            Convolution.init(inputs, outputs, rng),
            GroupNorm.init(outputs),
            Dense.init(embedding, outputs, rng),
            Convolution.init(outputs, outputs, rng),
            GroupNorm.init(outputs),
        )

    def __call__(self, x: Image, time: Embedding) -> Image:
        x = jax.nn.gelu(self.first_norm(self.first(x))) + self.time(time)[:, None, None]
        return jax.nn.gelu(self.second_norm(self.second(x)))


class Down(eqx.Module):
    """A block, whose result is kept for the way up, and a convolution that halves it."""

    block: Block
    halve: Convolution


class Middle(eqx.Module):
    """At the smallest size: convolution, GroupNorm, GELU, convolution."""

    first: Convolution
    norm: GroupNorm
    second: Convolution

    def __call__(self, x: Image) -> Image:
        return self.second(jax.nn.gelu(self.norm(self.first(x))))


class Up(eqx.Module):
    """A 4x4 transposed convolution that doubles, and a block for that beside what was kept."""

    kernel: Float[Array, "4 4 C C"]
    bias: Float[Array, " C"]
    block: Block

    def doubler(self) -> Callable[[Image], Image]:
        """Return the transposed convolution, with its weights rearranged once."""
        if jax.default_backend() != "cpu":
            return lambda x: plain_upsample(x, self.kernel) + self.bias
        taps = prepare(self.kernel)
        return lambda x: upsample(x.transpose(1, 2, 0, 3), taps).transpose(2, 0, 1, 3) + self.bias


class UNet(eqx.Module):
    """Noisy images and times to the noise in them."""

    embed: tuple[Dense, Dense]
    first: Convolution
    downs: tuple[Down, ...]
    middle: Middle
    ups: tuple[Up, ...]
    last: Dense
    time_dim: int = eqx.field(static=True)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        channels: tuple[int, ...] = (32, 64, 128, 256),
        time_dim: int = 128,
    ) -> None:
        """Make a new network: `channels` from full size down, one more than the image is halved."""
        if len(channels) < 2 or min(channels) < 1:
            raise ValueError(
                f"a UNet needs at least two positive widths, got {tuple(channels)}; "
                "change model.channels."
            )
        if time_dim < 4 or time_dim % 2:
            raise ValueError(
                f"the time embedding needs an even size of at least 4, got {time_dim}; "
                "change model.time_dim."
            )
        halvings = len(channels) - 1
        factor = 2**halvings
        if len(data_shape) != 3 or data_shape[0] % factor or data_shape[1] % factor:
            raise ValueError(
                f"a UNet with {len(channels)} widths halves its image {halvings} times, so it "
                f"takes images [H, W, C] with H and W divisible by {factor}, got "
                f"{tuple(data_shape)}; resize the images with data.size, or change model.channels."
            )
        rng = host_rng(key)
        embedding = 4 * time_dim
        pairs = list(pairwise(channels))
        self.embed = (Dense.init(time_dim, embedding, rng), Dense.init(embedding, embedding, rng))
        self.first = Convolution.init(data_shape[2], channels[0], rng)
        self.downs = tuple(
            Down(Block.init(i, o, embedding, rng), Convolution.init(o, o, rng, stride=2))
            for i, o in pairs
        )
        deepest = channels[-1]
        self.middle = Middle(
            Convolution.init(deepest, deepest, rng),
            GroupNorm.init(deepest),
            Convolution.init(deepest, deepest, rng),
        )
        self.ups = tuple(
            Up(
                # Each output pixel sees four taps.
                as_array(rng.normal(0, (4 * i) ** -0.5, (4, 4, i, i))),
                as_array(np.zeros(i)),
                Block.init(2 * i, o, embedding, rng),
            )
            for o, i in reversed(pairs)
        )
        self.last = Dense.init(channels[0], data_shape[2], rng, scale=0)
        self.time_dim = time_dim

    def denoiser(self) -> Callable[[Image, Int[Array, "..."]], Image]:
        """Return the network with its weights rearranged, for use in loops.

        It takes images and their times, or one time for all.
        """
        doublers = [up.doubler() for up in self.ups]

        def denoise(x: Image, t: Int[Array, "..."]) -> Image:
            embedding = timestep_embedding(jnp.atleast_1d(t), self.time_dim)
            time = self.embed[1](jax.nn.gelu(self.embed[0](embedding)))
            x = jax.nn.gelu(self.first(x))
            kept = []
            for down in self.downs:
                x = down.block(x, time)
                kept.append(x)
                x = down.halve(x)
            x = self.middle(x)
            for up, double in zip(self.ups, doublers, strict=True):
                x = up.block(jnp.concatenate([double(x), kept.pop()], axis=-1), time)
            return self.last(x)

        return denoise

    def __call__(self, x: Image, t: Int[Array, "..."]) -> Image:
        return self.denoiser()(x, t)


CLASSES = (UNet, Dense, Convolution, GroupNorm, Block, Down, Middle, Up)
