r"""How far chains can be trusted, and what the posterior does with the latents.

A chain of $n$ draws with autocorrelations $\rho_s$ is worth $n / (1 + 2\sum_s\rho_s)$ independent
ones. Latents are compared in quantile space: $u = F(z)$ by the prior's own CDF is uniform wherever
posterior and prior agree, so with the shares $p_b$ of $u$ in $M$ equal bins
$$\mathrm{KL} = \sum_b p_b\log(M p_b) - \tfrac12\sum_b \mathrm{Var}(\hat p_b)/\hat p_b .$$
The second term removes the bias of the first (Miller and Madow's, where draws are independent).
Draws of one example are not, so the variance is taken between examples.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import fft, special, stats

from ..models import AbstractModel, LatentModel
from ..posterior.annealing import posterior_chains, posterior_path

_STUCK = 1.2  # R-hat of chains that still remember where they started, if it is that of most
ACTIVE = 0.1  # nats that the data must say about a coordinate for it to be active
Values = Float[np.ndarray, "..."]


def importance_ess(log_weights: Any, axis: int = -1) -> Values:
    r"""$(\sum w)^2/\sum w^2$, between one and the number of weights."""
    log_w = np.asarray(log_weights, float)
    total = special.logsumexp(log_w, axis=axis)
    return np.exp(2 * total - special.logsumexp(2 * log_w, axis=axis))


def effective_sample_size(chains: Any) -> Values:
    """Of all draws [m chains, n draws, ...] together, for the mean of each quantity.

    Chains are split in halves, and disagreement between them lowers the number: chains stuck in
    different places are worth one draw each. Autocorrelations are summed over Geyer's (1992)
    initial monotone sequence.
    """
    draws = _split(_checked(chains))
    m, n = draws.shape[:2]
    gaps = draws - draws.mean(axis=1, keepdims=True)
    power = np.abs(fft.rfft(gaps, fft.next_fast_len(2 * n), axis=1)) ** 2
    covariance = fft.irfft(power.mean(axis=0), fft.next_fast_len(2 * n), axis=0)[:n] / n
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + draws.mean(axis=1).var(axis=0, ddof=1)
    constant = total == 0
    rho = 1 - (within - covariance) / np.where(constant, 1, total)
    rho[0] = 1
    pairs = rho[: n - n % 2].reshape(n // 2, 2, *rho.shape[1:]).sum(axis=1)
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    monotone = np.minimum.accumulate(np.where(positive, pairs, 0), axis=0)
    time = np.maximum(2 * monotone.sum(axis=0) - 1, 1 / np.log10(m * n))
    return np.where(constant, m * n, m * n / time)


def r_hat(chains: Any) -> Values:
    r"""Rank-normalised split $\hat R$ of chains [m, n, ...] (Vehtari et al., 2021); above 1.01 is a warning.

    The larger of that of the draws, which sees chains in different places, and that of their
    distances from the median, which sees chains of different widths.
    """
    draws = _checked(chains)
    folded = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.maximum(*(_plain_r_hat(_normal_scores(_split(part))) for part in (draws, folded)))


def _plain_r_hat(draws: Values) -> Values:
    n = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that never moved: inf
        ratio = np.sqrt((n - 1) / n + between / within)
    return np.where((within == 0) & (between == 0), 1.0, ratio)


def _normal_scores(draws: Values) -> Values:
    ranks = stats.rankdata(draws.reshape(-1, *draws.shape[2:]), axis=0).reshape(draws.shape)
    return special.ndtri((ranks - 0.375) / (draws.shape[0] * draws.shape[1] + 0.25))


def _checked(chains: Any) -> Values:
    draws = np.asarray(chains, float)
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise ValueError(
            "chains must have axes [chains, draws, ...] with at least 4 draws, got shape "
            f"{draws.shape}; a single chain is [1, draws]."
        )
    return draws


def _split(draws: Values) -> Values:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


class Divergence(NamedTuple):
    """A Kullback-Leibler divergence in nats, and its standard error."""

    kl: Values
    error: Values


def quantile_divergence(shares: Float[np.ndarray, "n ... M"]) -> Divergence:
    """Of mean shares of M equal bins from the uniform, given those of n independent groups of draws.

    At most log M: what happens within a bin is not seen.
    """
    n, bins = len(shares), shares.shape[-1]
    p = shares.mean(axis=0)
    log_ratio = np.log(np.where(p > 0, p * bins, 1))
    bias = shares.var(axis=0, ddof=1) / n / np.where(p > 0, p, 1)
    kl = np.sum(p * log_ratio - bias / 2, axis=-1)
    slope = np.sum(shares * log_ratio, axis=-1).var(axis=0, ddof=1) / n
    # Where the divergence vanishes it is a chi-squared, and all of its slope is noise.
    noise = np.sum(bias**2, axis=-1)
    return Divergence(kl, np.sqrt(np.maximum(slope - noise, 0) + noise / 2))


def _shares(u: Values, bins: int, axes: tuple[int, ...]) -> Values:
    """The shares of draws in each bin, averaged over `axes`; bins are the last axis."""
    place = np.minimum((u * bins).astype(int), bins - 1)
    return np.stack([np.mean(place == b, axis=axes) for b in range(bins)], axis=-1)


@eqx.filter_jit
def _chains(model: LatentModel, x: Array, key: PRNGKeyArray, **settings: Any) -> Any:
    return posterior_chains(posterior_path(model, x), batch=len(x), key=key, **settings)


def comparable(model: AbstractModel) -> LatentModel:
    """Return the model if posterior latents can be compared with its prior, or raise."""
    return model.with_quantiles("comparing posterior latents with the prior")


def posterior_diagnostics(
    model: AbstractModel,
    x: Float[Array | np.ndarray, "n ..."],
    *,
    key: PRNGKeyArray,
    chains: int = 4,
    steps: int = 200,
    step_size: float | None = None,
    bins: int = 16,
    batch: int = 32,
) -> dict[str, Any]:
    r"""What MALA chains from the prior show about the posteriors of a batch.

    **Arguments:** as many steps as are kept are discarded first; `step_size` is tuned on those
    unless it is given; `bins` is the resolution of the divergences.

    **Returns:** `ess` and `r_hat` for each example and coordinate, `acceptance` for each example;
    for each coordinate `mismatch`, $\mathrm{KL}(\frac1n\sum_i p(z_q\mid x_i)\,\|\,p(z_q))$, which a prior
    that was learned perfectly from this data would bring to zero, and `information`, the mean over
    examples of $\mathrm{KL}(p(z_q\mid x)\,\|\,p(z_q))$, both with errors, infinite for a mismatch of
    chains that did not mix; and `active_coordinates`, how many of the latter exceed 0.1 nats.
    """
    latent = comparable(model)
    if chains < 2 or steps < 8 or len(x) < 2:
        raise ValueError(
            "posterior diagnostics need at least 2 chains, 8 steps and 2 examples, got "
            f"{chains}, {steps} and {len(x)}."
        )
    data, n = latent.checked_data(x), len(x)
    settings = dict(chains=chains, burn_in=steps, steps=steps, step_size=step_size)
    parts = []
    for start in range(0, n, batch):  # all draws of many examples and latents would fill the memory
        rows = np.arange(start, start + min(batch, n)) % n
        z, accepted = _chains(latent, data[rows], jax.random.fold_in(key, start), **settings)
        u = np.asarray(latent.prior.cdf(z))  # [steps, chains, examples, ...]
        by_chain = np.moveaxis(u, 1, 0)
        part = (
            effective_sample_size(by_chain),
            r_hat(by_chain),
            np.asarray(accepted),
            _shares(u, bins, (0, 1)),
            quantile_divergence(_shares(u, bins, (0,))).kl,  # chains are the groups
        )
        parts.append([array[: n - start] for array in part])
    ess, ratio, acceptance, shares, said = (np.concatenate(p) for p in zip(*parts, strict=True))
    kl, error = quantile_divergence(shares)
    # Chains start at the prior, so that those which go nowhere would look like a perfect match.
    stuck = np.median(ratio, axis=0) > _STUCK
    information = said.mean(axis=0)
    return {
        "ess": ess,
        "r_hat": ratio,
        "acceptance": acceptance,
        "mismatch": kl,
        "mismatch_error": np.where(stuck, np.inf, error),
        "information": information,
        "information_error": said.std(axis=0, ddof=1) / n**0.5,
        "active_coordinates": active_coordinates(information),
    }


def active_coordinates(information: Any, threshold: float = ACTIVE) -> int:
    r"""How many coordinates the data speak about: $\mathbb{E}_x\mathrm{KL}(p(z_q\mid x)\,\|\,p(z_q))$ above `threshold`.

    Where a coordinate has several latents, as in a `UnivariatePrior`, each of them counts.
    """
    return int(np.sum(np.asarray(information) > threshold))
