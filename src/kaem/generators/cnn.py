r"""The convolutional generator of the paper's RGB experiments (Tables svhn-gen, cifar-gen, celeba-gen).

Latents $z\in\mathbb{R}^Q$ are projected to the smallest image, which 4x4 stride-2 transposed
convolutions double until it has the size of the data: Dense, LeakyReLU, (convT, LeakyReLU)
for each width, convT to the data's channels, and the output activation. Images are NHWC.
Further dense layers may come before the image, which the paper's tables do not have.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..derived import Derived, follow, keep
from ..initialise import as_array, host_rng
from ..layers.encoder import check_layers
from ..layers.upsample import (
    Planes,
    from_pixels,
    pixels,
    plain_upsample,
    planes,
    prepare,
    spread,
    spread_matrix,
    upsample,
)
from ._generator import OUTPUTS, AbstractGenerator, Decoder, Residuals

_BILINEAR = np.outer([0.25, 0.75, 0.75, 0.25], [0.25, 0.75, 0.75, 0.25])  # doubles an image


def _spread_matrices(kernels: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(map(spread_matrix, kernels))


class CNN(AbstractGenerator):
    """Latents [Q], or [Q, P] summed over p, to images [H, W, C]."""

    sums_latents: ClassVar[bool] = True
    first_is_linear: ClassVar[bool] = True

    projection: Float[Array, "Q D"]
    projection_bias: Float[Array, " D"]
    kernels: tuple[Float[Array, "4 4 I O"], ...]
    biases: tuple[Float[Array, " O"], ...]
    data_shape: tuple[int, ...] = eqx.field(static=True)
    output: str = eqx.field(static=True)
    slope: float = eqx.field(static=True)  # of the LeakyReLU
    dense: tuple[Float[Array, "I O"], ...] = ()  # between the projection and the smallest image
    dense_biases: tuple[Float[Array, " O"], ...] = ()
    taps: Derived | None = None  # the kernels, rearranged; None while they change

    def __init__(
        self,
        coordinates: int,
        data_shape: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (128, 64, 32),
        output: str = "sigmoid",
        slope: float = 0.01,
        smoothness: float = 0.0,
        hidden: tuple[int, ...] = (),
    ) -> None:
        """Make a new generator: `widths` are the channels of the hidden layers; the projection has those of the first.

        `smoothness` is the share of the kernels that starts as bilinear interpolation, the rest being
        random. What is random is left in images as a fine grain for long, which distances see.
        `hidden` are the sizes of dense layers between latents and the smallest image.
        """
        if output not in OUTPUTS:
            raise ValueError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")
        if not widths or min(widths) < 1:
            raise ValueError(f"a CNN generator needs positive widths, got {widths}.")
        if hidden and min(hidden) < 1:
            raise ValueError(f"hidden layers need positive sizes, got {hidden}.")
        if not 0 <= smoothness <= 1:
            raise ValueError(f"smoothness must be from 0 to 1, got {smoothness}.")
        factor = 2 ** (len(widths) + 1)
        if len(data_shape) != 3 or data_shape[0] % factor or data_shape[1] % factor:
            raise ValueError(
                f"a CNN generator with {len(widths)} hidden widths doubles its image "
                f"{len(widths) + 1} times, so it makes images [H, W, C] with H and W divisible by "
                f"{factor}, got {tuple(data_shape)}; change generator.widths, or resize the "
                "images with data.size."
            )
        height, width, channels = data_shape
        rng = host_rng(key)
        gain = (2 / (1 + slope**2)) ** 0.5
        smallest = (height // factor) * (width // factor) * widths[0]
        dense = [
            (
                as_array(rng.normal(0, gain / inputs**0.5, (inputs, outputs))),
                as_array(np.zeros(outputs)),
            )
            for inputs, outputs in pairwise([coordinates, *hidden, smallest])
        ]
        (self.projection, self.projection_bias), *rest = dense
        self.dense, self.dense_biases = (tuple(part[i] for part in rest) for i in range(2))
        sizes = [widths[0], *widths, channels]
        kernels, biases = [], []
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            # Each output pixel sees four taps; the last layer feeds no LeakyReLU.
            scale = (gain if i < len(widths) else 1) / (4 * inputs) ** 0.5
            kernel = rng.normal(0, scale, (4, 4, inputs, outputs))
            if smoothness:
                mixed = rng.normal(0, 2 * scale, (inputs, outputs))
                kernel = (1 - smoothness) * kernel + smoothness * _BILINEAR[..., None, None] * mixed
            kernels.append(as_array(kernel))
            biases.append(as_array(np.zeros(outputs)))
        self.kernels, self.biases = tuple(kernels), tuple(biases)
        self.data_shape = tuple(data_shape)
        self.output = output
        self.slope = slope
        self.taps = None

    def __check_init__(self) -> None:
        check_layers(self.kernels + self.dense, self.biases + self.dense_biases, self.slope)

    def __call__(self, z: Float[Array, "Q ..."]) -> Float[Array, "H W C"]:
        return self.decoder()(z[None])[0]

    @property
    def coordinates(self) -> int:
        return self.projection.shape[0]

    def prepared(self) -> Self:
        if jax.default_backend() != "cpu":
            return self
        made = keep(_spread_matrices, self.kernels)
        return eqx.tree_at(lambda g: g.taps, self, made, is_leaf=lambda leaf: leaf is None)

    def trainable(self) -> Self:
        return eqx.tree_at(lambda g: g.taps, self, None, is_leaf=lambda leaf: leaf is None)

    def absorb(
        self, mixing: Float[Array | np.ndarray, "Q Q"], offset: Float[Array | np.ndarray, " Q"]
    ) -> Self:
        r"""Return a generator of sources s that makes what this one makes of $z = m + A s$, exactly.

        Latents are rows, so that $z W + b = s A^\top W + (b + m W)$. What is prepared stays: kernels do.
        """
        a, m = np.asarray(mixing, np.float64), np.asarray(offset, np.float64)
        q = self.coordinates
        if a.shape != (q, q) or m.shape != (q,):
            raise ValueError(
                f"a generator of {q} latent coordinates takes in a mixing of shape {(q, q)} and an offset "
                f"of shape {(q,)}, got {a.shape} and {m.shape}."
            )
        w, b = (np.asarray(x, np.float64) for x in (self.projection, self.projection_bias))
        folded = (as_array(a.T @ w), as_array(b + m @ w))
        return eqx.tree_at(lambda g: (g.projection, g.projection_bias), self, folded)

    def absorb_in_gradients(
        self,
        mixing: Float[Array | np.ndarray, "Q Q"],
        offset: Float[Array | np.ndarray, " Q"],
        squares: bool,
    ) -> Self:
        # W = A^-T W' and b = b' - m A^-T W', hence the gradient A^-1 (g_W - m g_b) in W'.
        inverse, m = np.linalg.inv(np.asarray(mixing, np.float64)), np.asarray(offset, np.float64)
        w, b = (np.asarray(x, np.float64) for x in (self.projection, self.projection_bias))
        if squares:  # of what is taken to be uncorrelated
            moved = inverse**2 @ (w + np.outer(m**2, b))
        else:
            moved = inverse @ (w - np.outer(m, b))
        return eqx.tree_at(lambda g: g.projection, self, as_array(moved))

    def decoder(self) -> Decoder:
        if jax.default_backend() != "cpu":
            return self.plain_decoder()
        if self.taps is not None:
            matrices, warning = follow(_spread_matrices, self.kernels, self.taps)
            return self._layered(spread, matrices, warning)
        last = self._last_planes()
        height, width, _ = self.data_shape

        def decode(
            z: Float[Array, "n ..."], noise: Float[Array, "n X"] | None = None
        ) -> Float[Array, "n H W C"]:
            image = pixels(last(z), height // 2, width // 2)
            return self._output(image.transpose(2, 0, 1, 3), noise)

        return decode

    def residuals(self, x: Float[Array, "B ..."]) -> Residuals:
        if jax.default_backend() != "cpu":
            return super().residuals(x)
        # Planes are compared with planes: no pixel has to be moved at any step.
        last = self._last_planes()
        target = from_pixels(x.transpose(1, 2, 0, 3))
        inside = from_pixels(jnp.ones((*self.data_shape[:2], 1, self.data_shape[2])))

        def residual(z: Float[Array, "n ..."]) -> tuple[Float[Array, "... n X"], ...]:
            gaps = []
            for made, goal, mask in zip(last(z), target, inside, strict=True):
                chains = self._output(made).reshape(*made.shape[:2], -1, *goal.shape[2:])
                gap = mask[:, :, None] * (goal[:, :, None] - chains)
                gaps.append(gap.reshape(made.shape))
            return tuple(gaps)

        return residual

    def _last_planes(self) -> Callable[[Array], Planes]:
        """Latents to the last layer before its output activation, as planes of windows."""
        taps = [prepare(kernel) for kernel in self.kernels]
        height, width, channels = self.smallest()

        def last(z: Float[Array, "n ..."]) -> Planes:
            x = self.project(z).reshape(-1, height, width, channels).transpose(1, 2, 0, 3)
            for tap, bias in zip(taps[:-1], self.biases, strict=False):
                x = self.leaky(upsample(x, tap) + bias)
            bias = jnp.tile(self.biases[-1], 4)
            return Planes(*(plane + bias for plane in planes(x, taps[-1])))

        return last

    def plain_decoder(self) -> Decoder:
        """Return the same decoder through the library's convolutions: for GPUs, and the twin in tests."""
        return self._layered(plain_upsample, self.kernels)

    def _layered(
        self, double: Callable[..., Array], weights: tuple[Array, ...], warning: Array | float = 0.0
    ) -> Decoder:
        """Images layer by layer, each doubled by `double(x, weight)`; `warning` is 0 or NaN."""

        def decode(
            z: Float[Array, "n ..."], noise: Float[Array, "n X"] | None = None
        ) -> Float[Array, "n H W C"]:
            x = (self.project(z) + warning).reshape(-1, *self.smallest())
            for weight, bias in zip(weights[:-1], self.biases, strict=False):
                x = self.leaky(double(x, weight) + bias)
            return self._output(double(x, weights[-1]) + self.biases[-1], noise)

        return decode

    def smallest(self) -> tuple[int, int, int]:
        doublings = 2 ** len(self.kernels)
        height, width, _ = self.data_shape
        return height // doublings, width // doublings, self.kernels[0].shape[2]

    def project(self, z: Float[Array, "n ..."]) -> Float[Array, "n D"]:
        """Return the smallest images, flat."""
        *_, x = self.projections(z)
        return x

    def projections(self, z: Float[Array, "n ..."]) -> Iterator[Float[Array, "n D"]]:
        """Yield what each dense layer makes, the smallest images last."""
        x = z if z.ndim == 2 else jnp.sum(z, axis=2)
        weights, biases = (self.projection, *self.dense), (self.projection_bias, *self.dense_biases)
        for weight, bias in zip(weights, biases, strict=True):
            x = self.leaky(x @ weight + bias)
            yield x

    def _output(self, x: Array, noise: Array | None = None) -> Array:
        return OUTPUTS[self.output](x if noise is None else x + noise.reshape(x.shape))

    def leaky(self, x: Array) -> Array:
        return jnp.where(x > 0, x, self.slope * x)
