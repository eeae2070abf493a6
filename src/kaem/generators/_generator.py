"""What generators share: batches of latents to batches of data."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
from jaxtyping import Array, Float

OUTPUTS = {"sigmoid": jax.nn.sigmoid, "identity": lambda x: x}

Decoder = Callable[..., Float[Array, "n ..."]]
Residuals = Callable[[Float[Array, "n ..."]], tuple[Float[Array, "... n X"], ...]]


class AbstractGenerator(eqx.Module):
    """Latents to data."""

    data_shape: eqx.AbstractVar[tuple[int, ...]]
    output: eqx.AbstractVar[str]

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Q, the latent coordinates that it takes."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A function of latents [n, ...] and optional noise [n, X] to data [n, ...].

        Whatever can be prepared from the parameters is prepared once, when it is made: make it
        outside of loops. Noise is added before the output activation.
        """

    def residuals(self, x: Float[Array, "B ..."]) -> Residuals:
        r"""A function of latents [T * B, ...] to $x_b - \tilde x$, in any arrangement of the pixels.

        It may come in several arrays, whose axis before the last is that of the latents; entries
        that belong to no pixel are zero. Whoever needs only squares and gradients, as Langevin loops do, is spared the
        arrangement as an image. Like `decoder`, make it outside of loops.
        """
        decode = self.decoder()

        def residual(z: Float[Array, "n ..."]) -> tuple[Float[Array, "n X"], ...]:
            made = decode(z)
            return ((x - made.reshape(-1, *x.shape)).reshape(made.shape[0], -1),)

        return residual

    def prepared(self) -> Self:
        """With whatever `decoder` prepares from the parameters done once and kept."""
        return self

    def trainable(self) -> Self:
        """Without what `prepared` keeps: it goes stale when parameters change."""
        return self

    def regrid(self, z: Any, ratio: float = 0.05) -> Self:
        """Adapt grids to latents; only Kolmogorov-Arnold generators have them."""
        del z, ratio
        return self
