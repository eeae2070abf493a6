"""Data to the mean and log-variance of its latents, by convolutions or dense layers."""

from itertools import pairwise
from math import prod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..initialise import as_array, host_rng
from .convolution import downsample4x4


class Encoder(eqx.Module):
    """Data to the mean and log-variance of its latents.

    Images go through 4x4 stride-2 convolutions, anything else through dense layers; both with
    LeakyReLU, then one dense layer.
    """

    weights: tuple[Float[Array, "..."], ...]  # [4, 4, I, O] or [I, O]
    biases: tuple[Float[Array, " O"], ...]
    head: Float[Array, "D 2Q"]
    head_bias: Float[Array, " 2Q"]
    slope: float = eqx.field(static=True)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        latents: int,
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (16, 32, 64, 128),
        slope: float = 0.01,
    ) -> None:
        """Make a new encoder: `widths` are the channels of the hidden layers."""
        if widths and min(widths) < 1:
            raise ValueError(f"an encoder needs positive widths, got {widths}.")
        images, factor = len(data_shape) == 3, 2 ** len(widths)
        if images and (data_shape[0] % factor or data_shape[1] % factor):
            raise ValueError(
                f"an encoder with {len(widths)} widths halves its image as often, so height and "
                f"width must be divisible by {factor}, got {tuple(data_shape)}; change encoder.widths, "
                "or resize the images with data.size."
            )
        rng = host_rng(key)
        gain = (2 / (1 + slope**2)) ** 0.5
        first = data_shape[-1] if images else prod(data_shape)
        taps = (4, 4) if images else ()
        self.weights = tuple(
            as_array(rng.normal(0, gain / (prod(taps) * i) ** 0.5, (*taps, i, o)))
            for i, o in pairwise((first, *widths))
        )
        self.biases = tuple(as_array(np.zeros(o)) for o in widths)
        pixels = (data_shape[0] // factor) * (data_shape[1] // factor) if images else 1
        flat = pixels * (widths[-1] if widths else first)
        self.head = as_array(rng.normal(0, flat**-0.5, (flat, 2 * latents)))
        self.head_bias = as_array(np.zeros(2 * latents))
        self.slope = slope

    @property
    def latents(self) -> int:
        """Return the number of latents."""
        return self.head.shape[1] // 2

    def __call__(self, x: Float[Array, "n ..."]) -> tuple[Float[Array, "n Q"], Float[Array, "n Q"]]:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.ndim == 4:
                x = downsample4x4(x, weight) + bias
            else:
                x = x.reshape(len(x), -1) @ weight + bias
            x = jnp.where(x > 0, x, self.slope * x)
        flat = x.reshape(len(x), -1) @ self.head + self.head_bias
        mean, log_variance = jnp.split(flat, 2, axis=1)
        return mean, log_variance
