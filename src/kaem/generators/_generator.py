"""What generators share: batches of latents to batches of data."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..errors import UserError

OUTPUTS: dict[str, Callable[[Array], Array]] = {"sigmoid": jax.nn.sigmoid, "identity": lambda x: x}

Decoder = Callable[..., Float[Array, "n ..."]]
Residuals = Callable[[Float[Array, "n ..."]], tuple[Float[Array, "... n X"], ...]]


class AbstractGenerator(eqx.Module):
    """Latents to data: a base for generators of your own.

    A subclass has two members: `data_shape`, a field or property with the shape of one example, and
    `__call__`, which makes one example of one latent. Everything else has a default that a faster or
    stricter generator may replace. To save models with it, `kaem.register` the class.
    """

    sums_latents: ClassVar[bool] = False  # whether latents [Q, P] count only by their sums over p
    first_is_linear: ClassVar[bool] = False  # whether it can `absorb` a linear map of the latents

    data_shape: eqx.AbstractVar[tuple[int, ...]]

    @abstractmethod
    def __call__(self, z: Float[Array, "Q ..."]) -> Float[Array, "..."]:
        """Return the example [*data_shape] that a latent, of the shape of the prior, makes."""

    @property
    def range(self) -> str:
        """Return `sigmoid` if all values are in [0, 1], so that bytes are scaled to it; else `identity`."""
        return getattr(self, "output", "identity")

    @property
    def coordinates(self) -> int | None:
        """Return Q, the latent coordinates that it takes, or None if any call will tell."""
        return None

    def decoder(self) -> Decoder:
        """Return a function of latents [n, ...] and optional noise [n, X] to data [n, ...].

        Whatever can be prepared from the parameters is prepared once, when it is made: make it
        outside of loops. Noise is added to the data, or before the output activation if there is one.
        """

        def decode(
            z: Float[Array, "n ..."], noise: Float[Array, "n X"] | None = None
        ) -> Float[Array, "n ..."]:
            x = jax.vmap(self)(z)
            return x if noise is None else x + noise.reshape(x.shape)

        return decode

    def residuals(self, x: Float[Array, "B ..."]) -> Residuals:
        r"""Return a function of latents [T * B, ...] to $x_b - \tilde x$, in any arrangement of the pixels.

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
        """Return this generator with whatever `decoder` prepares done once and kept."""
        return self

    def trainable(self) -> Self:
        """Return this generator without what `prepared` keeps: it goes stale when parameters change."""
        return self

    def absorb(
        self, mixing: Float[Array | np.ndarray, "Q Q"], offset: Float[Array | np.ndarray, " Q"]
    ) -> Self:
        r"""Return a generator of sources s [Q] that makes what this one makes of $z = m + A s$.

        Only a generator whose first layer is linear can; any other raises.
        """
        raise UserError(
            f"a linear map of the latents can be folded only into a generator whose first layer is "
            f"linear, which that of a {type(self).__name__} is not (a KAN, strictly Kolmogorov-Arnold, "
            "has functions of one variable there); keep the aligned prior, or use generator.kind = cnn."
        )

    def absorb_in_gradients(
        self,
        mixing: Float[Array | np.ndarray, "Q Q"],
        offset: Float[Array | np.ndarray, " Q"],
        squares: bool,
    ) -> Self:
        """Return gradients, held in the places of this generator's weights, as of what `absorb` returns.

        With `squares` they are running means of squared gradients. A generator of your own that can
        `absorb` may leave them as they are: an optimiser then needs some updates to find its way.
        """
        return self

    def regrid(self, z: Any, ratio: float = 0.05, change: float | None = 0.01) -> Self:
        """Adapt grids to latents; only Kolmogorov-Arnold generators have them."""
        return self
