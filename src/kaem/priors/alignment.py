r"""Alignment: a prior where the latents are, by whitening, unmixing and refitting.

Latents $z$ of an aggregated posterior are correlated and of any scale, and a product of densities
is neither. $z = m + A s$ with $A = A_0 W^\top$: $m$ and $A_0 A_0^\top$ are their mean and covariance, the rotation $W$
makes the sources $s$ as independent as rotations can (`unmixing`), each with mean 0 and variance 1,
and their densities are fitted to all samples at once (`refitting`).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._prior import AbstractPrior
from .aligned import AlignedPrior
from .refitting import refit
from .unmixing import rotation

__all__ = ["aligned", "judged", "mean_log_prob", "refit", "unmix", "whiten"]

_HELD_OUT = 10  # one latent in so many is not fitted, but judged by

_LEAST = 1e-8  # of the largest variance in any direction: what is less counts as this much
_TAIL = 1e-3  # of the samples at either end, that need not fit in a domain
_FILLED = 0.9  # of a domain, by the others

Latents = Float[Array | np.ndarray, "n Q"]
Mixing = tuple[Float[np.ndarray, "Q Q"], Float[np.ndarray, " Q"]]


def whiten(z: Latents) -> Mixing:
    r"""Return $A_0$ [Q, Q] and $m$ [Q] with $z = m + A_0 x$, where latents z [n, Q] make x with covariance I.

    $A_0$ is the symmetric root of the covariance, so that x is as close to z as white data can be.
    Directions with hardly any variance count as if they had a little, and x has less than 1 there.
    """
    values = _checked(z)
    mean = values.mean(axis=0)
    centred = values - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(values))
    if not variances[-1] > 0:
        raise ValueError("latents to align must vary, got samples that are all alike.")
    scales = np.sqrt(np.maximum(variances, _LEAST * variances[-1]))
    return (directions * scales) @ directions.T, mean


def unmix(z: Latents, *, steps: int = 100, tolerance: float = 1e-5) -> Mixing:
    r"""Return $A$ [Q, Q] and $m$ [Q] with $z = m + A s$, where latents z [n, Q] make independent sources s.

    Sources have mean 0 and variance 1; their signs and order are those that the search ends with.
    `steps` limits the search, which also ends when a source gains less than `tolerance` nats in the
    mean. The same latents always give the same answer.
    """
    mixing, mean = whiten(z)
    w, _ = rotation(_sources(z, mixing, mean).T, steps=steps, tolerance=tolerance)
    return mixing @ w.T, mean


def aligned(prior: AbstractPrior, z: Latents) -> AlignedPrior:
    """Return a prior aligned to latents z [n, Q]: unmixed, with densities of the form of `prior` [Q] refitted.

    Sources have mean 0 and variance 1 where the prior's domain has room for that (for all but a
    thousandth of the samples at either end), and else are scaled and moved to fill nine tenths of it.
    """
    if len(prior.shape) != 1:
        raise ValueError(
            f"alignment needs a prior with one density for each coordinate, of shape (Q,), got one of "
            f"shape {prior.shape}; sum the latents over p, and give a MixturePrior for the sums."
        )
    values = _checked(z)
    if values.shape[1:] != prior.shape:
        raise ValueError(
            f"a prior of shape {prior.shape} is aligned to latents [n, {prior.shape[0]}], got "
            f"{values.shape}."
        )
    mixing, offset = unmix(values)
    s = _sources(values, mixing, offset)
    scale, shift = _room(s, *(np.asarray(bound, np.float64) for bound in prior.bounds))
    mixing, offset = mixing / scale, offset - mixing @ (shift / scale)
    return AlignedPrior(refit(prior, s * scale + shift), mixing, offset)


def judged(n: int) -> Bool[np.ndarray, " n"]:
    """Return which of `n` latents are left out of a fit, to judge it by."""
    return np.arange(n) % _HELD_OUT == 0


def mean_log_prob(prior: AlignedPrior | AbstractPrior, z: Latents) -> float:
    """Return the mean log-density of latents, sources outside their domain taken at its ends.

    That is where an encoder's latents are moved to, once a map is part of the generator.
    """
    latents = jnp.asarray(z)
    if not isinstance(prior, AlignedPrior):
        return float(jnp.mean(prior.log_prob(latents)))
    inside = jnp.clip(prior.unmixed(latents), *prior.sources.bounds)
    volume = np.linalg.slogdet(np.asarray(prior.mixing, np.float64))[1]
    return float(jnp.mean(prior.sources.log_prob(inside)) - volume)


def _sources(z: Latents, mixing: np.ndarray, offset: np.ndarray) -> Float[np.ndarray, "n Q"]:
    return np.linalg.solve(mixing, (np.asarray(z, np.float64) - offset).T).T


def _room(
    s: Float[np.ndarray, "n Q"], lo: np.ndarray, hi: np.ndarray
) -> tuple[Float[np.ndarray, " Q"], Float[np.ndarray, " Q"]]:
    """Return the scale and the shift of each source with which it fits in its domain."""
    low, high = np.quantile(s, [_TAIL, 1 - _TAIL], axis=0)
    scale = np.where((low >= lo) & (high <= hi), 1.0, _FILLED * (hi - lo) / (high - low))
    return scale, np.where(scale == 1, 0.0, (lo + hi) / 2 - scale * (low + high) / 2)


def _checked(z: Latents) -> Float[np.ndarray, "n Q"]:
    """Return latents in double precision, or say what is wrong with them."""
    values = np.asarray(z, np.float64)
    if values.ndim != 2 or len(values) <= 2 * values.shape[-1]:
        raise ValueError(
            f"alignment needs latents [n, Q] with n > 2 Q (hundreds for each coordinate are better), got "
            f"{values.shape}; give more samples, or sum latents [n, Q, P] over p."
        )
    if not np.isfinite(values).all():
        raise ValueError("some latents are NaN or infinite; remove them before aligning a prior.")
    return values
