r"""Temperatures $0 = t_0 < t_1 < \dots < t_N = 1$ of the power posteriors.

All are functions of traced numbers, so that a schedule never recompiles anything.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def power_law(number: int, exponent: Array | float) -> Float[Array, " N+1"]:
    r"""Return $t_k = (k/N)^p$ (eq. power-law): $p > 1$ is dense near the prior, $p < 1$ near the posterior."""
    return jnp.linspace(0, 1, number + 1) ** exponent


def cosine_exponent(
    progress: Array | float, start: float = 2.0, end: float = 0.5, cycles: int = 0
) -> Array:
    r"""Return the exponent $p$ after a share `progress` of all updates (eq. p-anneal).

    With `cycles` = 0 it goes from `start` to `end` once.
    """
    turn = 2 * jnp.pi * (cycles + 0.5) * jnp.asarray(progress)
    return start + (end - start) * 0.5 * (1 - jnp.cos(turn))


def balanced(t: Float[Array, " N+1"], rejection: Float[Array, " N"]) -> Float[Array, " N+1"]:
    r"""Return the ladder on which all pairs would be rejected equally often (Syed et al., 2021).

    The cumulated rejection rate is the communication barrier $\Lambda(t)$; equal shares of it,
    interpolated linearly, are the new rungs.
    """
    barrier = jnp.concatenate([jnp.zeros(1), jnp.cumsum(rejection + 1e-3)])
    rungs = jnp.interp(jnp.linspace(0, barrier[-1], len(t)), barrier, t)
    return rungs.at[0].set(0.0).at[-1].set(1.0)


def checked_ladder(values: Sequence[float]) -> Float[np.ndarray, " N+1"]:
    """Return a ladder given by hand, or raise a ValueError that says what is wrong with it."""
    t = np.asarray(values, np.float32)
    if t.ndim != 1 or len(t) < 2 or t[0] != 0 or t[-1] != 1 or not (np.diff(t) > 0).all():
        raise ValueError(
            f"a temperature ladder must increase strictly from 0 to 1, got {list(values)}; for "
            "example [0, 0.1, 0.4, 1]."
        )
    return t
