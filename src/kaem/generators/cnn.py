r"""The convolutional generator of the paper's RGB experiments (Tables svhn-gen, cifar-gen, celeba-gen).

Latents $z\in\mathbb{R}^Q$ are projected to the smallest image, which 4x4 stride-2 transposed
convolutions double until it has the size of the data: Dense, LeakyReLU, (convT, LeakyReLU)
for each width, convT to the data's channels, and the output activation. Images are NHWC.
"""

from itertools import pairwise

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases._basis import as_array, host_rng
from ._generator import OUTPUTS, AbstractGenerator, Decoder
from .upsample import prepare, upsample


class CNN(AbstractGenerator):
    """Latents [Q], or [Q, P] summed over p, to images [H, W, C]."""

    projection: Float[Array, "Q D"]
    projection_bias: Float[Array, " D"]
    kernels: tuple[Float[Array, "4 4 I O"], ...]
    biases: tuple[Float[Array, " O"], ...]
    data_shape: tuple[int, ...] = eqx.field(static=True)
    output: str = eqx.field(static=True)
    slope: float = eqx.field(static=True)  # of the LeakyReLU

    def __init__(
        self,
        coordinates: int,
        data_shape: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (128, 64, 32),
        output: str = "sigmoid",
        slope: float = 0.01,
    ) -> None:
        """`widths` are the channels of the hidden layers; the projection has those of the first."""
        if output not in OUTPUTS:
            raise ValueError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")
        if not widths or min(widths) < 1:
            raise ValueError(f"a CNN generator needs positive widths, got {widths}.")
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
        self.projection = as_array(rng.normal(0, gain / coordinates**0.5, (coordinates, smallest)))
        self.projection_bias = as_array(np.zeros(smallest))
        sizes = [widths[0], *widths, channels]
        kernels, biases = [], []
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            # Each output pixel sees four taps; the last layer feeds no LeakyReLU.
            scale = (gain if i < len(widths) else 1) / (4 * inputs) ** 0.5
            kernels.append(as_array(rng.normal(0, scale, (4, 4, inputs, outputs))))
            biases.append(as_array(np.zeros(outputs)))
        self.kernels, self.biases = tuple(kernels), tuple(biases)
        self.data_shape = tuple(data_shape)
        self.output = output
        self.slope = slope

    def decoder(self) -> Decoder:
        taps = [prepare(kernel) for kernel in self.kernels]
        doublings = 2 ** len(taps)
        height, width, _ = self.data_shape
        start = (-1, height // doublings, width // doublings, self.kernels[0].shape[2])

        def decode(
            z: Float[Array, "n ..."], noise: Float[Array, "n X"] | None = None
        ) -> Float[Array, "n H W C"]:
            flat = z if z.ndim == 2 else jnp.sum(z, axis=2)
            x = self._leaky(flat @ self.projection + self.projection_bias).reshape(start)
            for tap, bias in zip(taps[:-1], self.biases, strict=False):
                x = self._leaky(upsample(x, tap) + bias)
            x = upsample(x, taps[-1]) + self.biases[-1]
            if noise is not None:
                x = x + noise.reshape(x.shape)
            return OUTPUTS[self.output](x)

        return decode

    def _leaky(self, x: Array) -> Array:
        return jnp.where(x > 0, x, self.slope * x)
