"""What generators share: batches of latents to batches of data."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
from jaxtyping import Array, Float

OUTPUTS = {"sigmoid": jax.nn.sigmoid, "identity": lambda x: x}

Decoder = Callable[..., Float[Array, "n ..."]]


class AbstractGenerator(eqx.Module):
    """Latents to data."""

    data_shape: eqx.AbstractVar[tuple[int, ...]]
    output: eqx.AbstractVar[str]

    @abstractmethod
    def decoder(self) -> Decoder:
        """A function of latents [n, ...] and optional noise [n, X] to data [n, ...].

        Whatever can be prepared from the parameters is prepared once, when it is made: make it
        outside of loops. Noise is added before the output activation.
        """

    def regrid(self, z: Any, ratio: float = 0.05) -> Self:
        """Adapt grids to latents; only Kolmogorov-Arnold generators have them."""
        del z, ratio
        return self
