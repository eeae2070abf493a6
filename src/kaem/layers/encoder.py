"""Data to the mean and log-variance of its latents, by convolutions or dense layers."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, prod
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..initialise import as_array, host_rng
from ..methods import FIXED
from .convolution import downsample4x4

Moments = tuple[Float[Array, "n D"], Float[Array, "n D"]]


class AbstractEncoder(eqx.Module):
    """Data to the mean and log-variance of its latents: a base for encoders of your own."""

    @property
    @abstractmethod
    def latents(self) -> int:
        """Return D, the number of latents of an example."""

    @property
    @abstractmethod
    def mixing_matrix(self) -> Float[Array, "D D"] | None:
        """Return the map that makes the latents of a KAEM of independent normals; None makes none.

        See `kaem.posterior.guess`.
        """

    @abstractmethod
    def __call__(self, x: Float[Array, "n ..."]) -> Moments:
        """Return means and log-variances [n, D] of a batch."""

    @abstractmethod
    def remapped(self, matrix: Float[np.ndarray, "D D"], offset: Float[np.ndarray, " D"]) -> Self:
        r"""Return an encoder of the latents $B(z - m)$ instead of $z$, for a `matrix` B and an `offset` m."""


def check_layers(weights: Sequence[Array], biases: Sequence[Array], slope: float) -> None:
    """Raise unless each layer has a bias for each of its outputs, and the LeakyReLU a number for its slope."""
    outputs, found = [w.shape[-1:] for w in weights], [b.shape for b in biases]
    if found != outputs:
        raise ValueError(f"layers of {outputs} outputs have biases of shapes {found}.")
    if isinstance(slope, bool) or not isinstance(slope, int | float) or not isfinite(slope):
        raise ValueError(f"the slope of a LeakyReLU must be a finite number, got {slope!r}.")


class _Layers(AbstractEncoder):
    """Hidden layers with LeakyReLU, then one dense layer."""

    weights: eqx.AbstractVar[tuple[Float[Array, "..."], ...]]  # [4, 4, I, O] or [I, O]
    biases: eqx.AbstractVar[tuple[Float[Array, " O"], ...]]
    head: eqx.AbstractVar[Float[Array, "F 2D"]]
    head_bias: eqx.AbstractVar[Float[Array, " 2D"]]
    slope: eqx.AbstractVar[float]
    mixing: eqx.AbstractVar[Float[Array, "D D"] | None]

    def __check_init__(self) -> None:
        check_layers(self.weights, self.biases, self.slope)
        if self.head_bias.shape != self.head.shape[1:] or self.head.shape[1] % 2:
            raise ValueError(
                "the last layer of an encoder gives a mean and a log-variance of every latent, got "
                f"weights of shape {self.head.shape} and a bias of shape {self.head_bias.shape}."
            )
        square = (self.latents, self.latents)
        if self.mixing is not None and self.mixing.shape != square:
            raise ValueError(f"a mixing of shape {self.mixing.shape}, expected {square}.")

    @property
    def latents(self) -> int:
        return self.head.shape[1] // 2

    @property
    def mixing_matrix(self) -> Float[Array, "D D"] | None:
        return self.mixing

    def remapped(self, matrix: Float[np.ndarray, "D D"], offset: Float[np.ndarray, " D"]) -> Self:
        # M y - m = M (y - M^-1 m), so that the means move, and B M is the new mixing.
        mixing = np.eye(self.latents) if self.mixing is None else np.asarray(self.mixing, float)
        moved = np.asarray(self.head_bias, float)
        moved[: self.latents] -= np.linalg.solve(mixing, np.asarray(offset, float))
        return eqx.tree_at(
            lambda e: (e.head_bias, e.mixing),
            self,
            (as_array(moved), as_array(np.asarray(matrix, float) @ mixing)),
            is_leaf=lambda leaf: leaf is None,
        )

    def __call__(self, x: Float[Array, "n ..."]) -> Moments:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.ndim == 4:
                x = downsample4x4(x, weight) + bias
            else:
                x = x.reshape(len(x), -1) @ weight + bias
            x = jnp.where(x > 0, x, self.slope * x)
        flat = x.reshape(len(x), -1) @ self.head + self.head_bias
        mean, log_variance = jnp.split(flat, 2, axis=1)
        return mean, log_variance


class Encoder(_Layers):
    """Images go through 4x4 stride-2 convolutions, anything else through dense layers."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, " O"], ...]
    head: Float[Array, "F 2D"]
    head_bias: Float[Array, " 2D"]
    slope: float = eqx.field(static=True)
    mixing: Float[Array, "D D"] | None = eqx.field(metadata=FIXED, default=None)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        latents: int,
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (16, 32, 64, 128),
        slope: float = 0.01,
        mixing: bool = False,
    ) -> None:
        """Make a new encoder: `widths` are the channels of the hidden layers; `mixing` makes room for a linear map of all latents, which alignment sets."""
        images, factor = len(data_shape) == 3, 2 ** len(widths)
        if images and (data_shape[0] % factor or data_shape[1] % factor):
            raise ValueError(
                f"an encoder with {len(widths)} widths halves its image as often, so height and "
                f"width must be divisible by {factor}, got {tuple(data_shape)}; change encoder.widths, "
                "or resize the images with data.size."
            )
        pixels = (data_shape[0] // factor) * (data_shape[1] // factor) if images else 1
        first = data_shape[-1] if images else prod(data_shape)
        taps = (4, 4) if images else ()
        fields = _new(first, taps, widths, pixels, latents, slope, mixing, key)
        for name, value in fields.items():
            setattr(self, name, value)


class DenseEncoder(_Layers):
    """Data of any shape, flat, through dense layers."""

    weights: tuple[Float[Array, "I O"], ...]
    biases: tuple[Float[Array, " O"], ...]
    head: Float[Array, "F 2D"]
    head_bias: Float[Array, " 2D"]
    slope: float = eqx.field(static=True)
    mixing: Float[Array, "D D"] | None = eqx.field(metadata=FIXED, default=None)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        latents: int,
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (256, 128),
        slope: float = 0.01,
        mixing: bool = False,
    ) -> None:
        """Make a new encoder: `widths` are those of the hidden layers; `mixing` makes room for a linear map of all latents, which alignment sets."""
        fields = _new(prod(data_shape), (), widths, 1, latents, slope, mixing, key)
        for name, value in fields.items():
            setattr(self, name, value)


def _new(
    first: int,
    taps: tuple[int, ...],
    widths: tuple[int, ...],
    pixels: int,
    latents: int,
    slope: float,
    mixing: bool,
    key: PRNGKeyArray,
) -> dict[str, object]:
    """Return new layers: `first` channels through `widths`, of which `pixels` remain for the head."""
    if widths and min(widths) < 1:
        raise ValueError(f"an encoder needs positive widths, got {widths}.")
    rng = host_rng(key)
    gain = (2 / (1 + slope**2)) ** 0.5
    weights = tuple(
        as_array(rng.normal(0, gain / (prod(taps) * i) ** 0.5, (*taps, i, o)))
        for i, o in pairwise((first, *widths))
    )
    flat = pixels * (widths[-1] if widths else first)
    return {
        "weights": weights,
        "biases": tuple(as_array(np.zeros(o)) for o in widths),
        "head": as_array(rng.normal(0, flat**-0.5, (flat, 2 * latents))),
        "head_bias": as_array(np.zeros(2 * latents)),
        "slope": slope,
        "mixing": as_array(np.eye(latents)) if mixing else None,
    }
