r"""The Morlet wavelet $\psi(x) = \cos(\tau x)\,e^{-x^2/2}$, with trainable bandwidth $\tau$."""

import jax.numpy as jnp
from jaxtyping import Array

from ._wavelet import Wavelet


class Morlet(Wavelet):
    """An oscillation under a Gaussian window: the basis of the paper's RGB priors."""

    def mother(self, x: Array) -> Array:
        return jnp.cos(self.tau * x) * jnp.exp(-0.5 * x**2)
