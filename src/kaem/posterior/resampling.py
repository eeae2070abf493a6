r"""Resampling: integer counts $n_s$ with $\mathbb{E}[n_s] = N w_s$ and $\sum_s n_s = N$.

Every scheme returns counts, not indices: an expectation over resampled particles is
$\frac1N\sum_s n_s\,\rho(z_s)$, and nothing needs to be gathered.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

Resampler = Callable[[PRNGKeyArray, Float[Array, " N"]], Float[Array, " N"]]


def _below(points: Float[Array, " M"], cumulative: Float[Array, " N"]) -> Float[Array, " N"]:
    """How many of the points lie below each cumulative weight."""
    if points.shape[0] <= 256:  # all pairs in one fused loop, faster than sorting
        return jnp.sum(points < cumulative[:, None], axis=1)
    return jnp.searchsorted(jnp.sort(points), cumulative, side="left", method="sort")


def _counts(weights: Float[Array, " N"], points: Float[Array, " N"]) -> Float[Array, " N"]:
    below = _below(points, jnp.cumsum(weights))
    below = below.at[-1].set(points.shape[0])  # whatever the cumulative sum rounded to
    return jnp.diff(below, prepend=0).astype(weights.dtype)


def multinomial(key: PRNGKeyArray, weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return counts [N] of N independent draws."""
    return _counts(weights, jax.random.uniform(key, weights.shape))


def stratified(key: PRNGKeyArray, weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return counts [N] of one draw in each of N equal strata."""
    n = weights.shape[0]
    return _counts(weights, (jnp.arange(n) + jax.random.uniform(key, (n,))) / n)


def systematic(key: PRNGKeyArray, weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return counts [N] with one uniform offset shared by all N strata."""
    n = weights.shape[0]
    return _counts(weights, (jnp.arange(n) + jax.random.uniform(key)) / n)


def residual(key: PRNGKeyArray, weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return counts [N] by Algorithm 3: the integer parts of N w, then multinomial draws from what remains."""
    n = weights.shape[0]
    expected = n * weights
    whole = jnp.floor(expected)
    mass = expected - whole
    remaining = n - jnp.sum(whole)  # R, known only at run time
    cumulative = jnp.cumsum(mass)
    cumulative = cumulative / jnp.maximum(cumulative[-1], np.finfo(np.float32).tiny)
    # R uniforms out of n: the others are moved beyond the cumulative weights.
    u = jnp.where(jnp.arange(n) < remaining, jax.random.uniform(key, (n,)), 2.0)
    below = _below(u, cumulative).at[-1].set(remaining.astype(jnp.int32))
    return whole + jnp.diff(below, prepend=0)


RESAMPLERS: dict[str, Resampler | None] = {
    "residual": residual,
    "systematic": systematic,
    "stratified": stratified,
    "multinomial": multinomial,
    "none": None,
}
