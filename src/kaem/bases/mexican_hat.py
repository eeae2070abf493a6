r"""The Mexican hat $\psi(x) = \tfrac{2}{\sqrt{3}\,\pi^{1/4}} (1 - x^2)\,e^{-x^2/2}$, at scale $\tau$."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._wavelet import Wavelet

NORM = 2 / (3**0.5 * jnp.pi**0.25)


class MexicanHat(Wavelet):
    """The (negative) second derivative of a Gaussian."""

    @property
    def reach(self) -> Float[Array, "Q P"]:
        return 8 * self.width / jnp.maximum(jnp.abs(self.tau), 1e-3)

    def mother(self, x: Array) -> Array:
        x = self.tau * x
        return NORM * (1 - x**2) * jnp.exp(-0.5 * x**2)
