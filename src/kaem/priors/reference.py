r"""Reference measures $\pi_0$, the densities that the energies tilt (eq. exp-tilt).

A reference states its default domain: the interval on which a prior is defined, normalised
and sampled. The first three are Table hp-nist's initial grid ranges.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array


@dataclass(frozen=True)
class Reference:
    """A log-density, up to normalisation on the domain, and the domain it is meant for."""

    log_density: Callable[[Array], Array]
    domain: tuple[float, float]
    support: tuple[float, float] = (-float("inf"), float("inf"))


_LOG_SQRT_2PI = 0.9189385332046727


def _gaussian(z: Array) -> Array:
    return -0.5 * z**2 - _LOG_SQRT_2PI


def _constant(z: Array) -> Array:
    return jnp.zeros_like(z)


def _lognormal(z: Array) -> Array:
    # Far below any table's resolution, so that the score stays finite at zero.
    log_z = jnp.log(jnp.maximum(z, 1e-6))
    return -0.5 * log_z**2 - log_z - _LOG_SQRT_2PI


REFERENCES: dict[str, Reference] = {
    "gaussian": Reference(_gaussian, (-1.5, 1.5)),
    "uniform": Reference(_constant, (0.0, 1.0)),
    "none": Reference(_constant, (-1.2, 1.2)),
    "lognormal": Reference(_lognormal, (0.0, 10.0), support=(0.0, float("inf"))),
}
