r"""$\log p(x)$ of held-out data, with the error of every number.

With $l(z) = \log p(x\mid z)$ and power posteriors $p_t \propto p(z)\,e^{t\,l(z)}$, whose mean of $l$ is $E_t$:

- *importance*: $\log\frac1S\sum_s w_s$ with $z_s$ from the prior and $w = e^l$, or from a VAE's encoder;
- *trapezoid*: $\frac12\sum_k\Delta t_k(E_{k-1} + E_k)$, which is off by $O(1/N_t^2)$;
- *steppingstone*: $\sum_k \log\mathbb{E}_{k-1}e^{\Delta t_k l}$;
- *corrected*: the trapezoid and its Kullback-Leibler correction (eq. disc);
- *ais*: $\log\frac1M\sum_m w_m$ of particles annealed from the prior.

In exact algebra the correction turns the trapezoid into steppingstone. Here each divergence is
estimated with draws of its own first argument, as its definition asks:
$\mathrm{KL}(p_{k-1}\|p_k) = -\Delta t_k E_{k-1} + \log\mathbb{E}_{k-1}e^{\Delta t_k l}$ from below and
$\mathrm{KL}(p_k\|p_{k-1}) = \Delta t_k E_k + \log\mathbb{E}_k e^{-\Delta t_k l}$ from above. The $E_k$ cancel,
and what remains is the mean of the forward and the reverse steppingstone: a logarithm of a mean is
biased downwards in the one and upwards in the other, and half of each cancels to first order.

A logarithm of weights is never too high in expectation, and its error is that of the delta
method. Errors are of Monte Carlo only: the trapezoid's own is for `corrected` to show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log, prod
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import special

from ..baselines import VAE, NeuralEBM
from ..errors import UserError
from ..model import AbstractModel, LatentModel
from ..objectives import checked_ladder, power_law
from .annealing import annealed, posterior_path, prior_path, tempered_chains
from .diagnostics import effective_sample_size

Method = Literal["importance", "trapezoid", "corrected", "steppingstone", "ais"]
Values = Float[np.ndarray, "..."]

_EXPONENT = 4.0  # of the ladder: l has a standard deviation of 10^2 to 10^3 at the prior
_CHUNK = 256  # proposals decoded at once
_COLLAPSED = 4.0  # with fewer effective samples, or draws of a chain, errors mean nothing
_PRIOR_PARTICLES = 512  # for a neural prior's normaliser, which all examples share


class Effort(NamedTuple):
    """What a method spends on an example, and how many examples it takes at once."""

    samples: int  # proposals, chains, or particles
    temperatures: int  # N_t
    steps: int  # draws kept of each chain (as many go before), or moves at each temperature
    batch: int


DEFAULTS = {
    "importance": Effort(16_384, 1, 1, 256),
    "trapezoid": Effort(8, 32, 200, 16),
    "corrected": Effort(8, 32, 200, 16),
    "steppingstone": Effort(8, 32, 200, 16),
    "ais": Effort(32, 200, 1, 64),
}


@dataclass(frozen=True)
class LogLikelihood:
    """log p(x) in nats, example by example.

    An `error` is a standard error of Monte Carlo. It is infinite where fewer than four samples
    carry the weight (the value is a lower bound, by how much nobody knows), or where a chain is
    worth fewer than four draws, and its place may be an accident of where it started.
    """

    method: str
    value: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    effective_samples: Float[np.ndarray, " n"]
    monte_carlo_error: float  # of the mean; examples that share proposals err together
    dimensions: int
    from_bytes: bool

    @property
    def mean(self) -> float:
        return float(np.mean(self.value))

    @property
    def examples_error(self) -> float:
        """Standard error of the mean because other examples might have been taken, without Monte Carlo's."""
        n = len(self.value)
        if n < 2:
            return float("nan")
        own = np.mean(self.error**2)
        if not np.isfinite(own):
            return float(np.std(self.value, ddof=1) / n**0.5)
        # Values spread by their own errors too, except for the part that these have in common.
        common = (self.monte_carlo_error**2 - own / n) * n / (n - 1)
        return float(max(np.var(self.value, ddof=1) - own + common, 0) ** 0.5 / n**0.5)

    @property
    def mean_error(self) -> float:
        """Standard error of the mean over the choice of examples and over Monte Carlo."""
        return float(np.hypot(self.examples_error, self.monte_carlo_error))

    @property
    def bits_per_dimension(self) -> float:
        """Of the mean; for pixels that were bytes, in units of one of their 256 levels."""
        bits = -self.mean / self.dimensions / log(2)
        return bits + 8 if self.from_bytes else bits


def log_likelihood(
    model: LatentModel,
    x: Float[Array | np.ndarray, "n ..."],
    *,
    key: PRNGKeyArray,
    method: Method = "importance",
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LogLikelihood:
    r"""log p(x) of each example under a model with latents; see the module for the methods.

    The generator's own noise is off, as it is when the model is sampled. Prior draws are by the
    prior's own inverse transform: 'exact' is, the paper's is as coarse as its nodes.

    **Arguments:** `x` are data as the model makes them, or bytes; `samples` the number of
    proposals (`importance`), of independent chains for each example, or of particles (`ais`);
    `temperatures` their number, spaced by a power law, or a ladder from 0 to 1; `steps` the draws
    kept of each chain after as many discarded ones, or the moves of a particle at each
    temperature; `batch` the examples treated at once; `DEFAULTS` holds what is taken for None.
    `progress` is called with the number of examples done and of all.
    """
    effort = resolved(model, method, samples, temperatures, steps, batch)
    from_bytes, x = np.asarray(x).dtype == np.uint8, model.checked_data(x)
    t: Any = power_law(effort.temperatures, _EXPONENT)
    if temperatures is not None and not isinstance(temperatures, int):
        t = checked_ladder(list(temperatures))
    key, normaliser_key = jax.random.split(key)
    model, n, parts = model.prepared(), len(x), []
    size = min(effort.batch, n)
    for start in range(0, n, size):
        rows = np.arange(start, start + size) % n  # a last batch of full size compiles nothing new
        part = _estimate(model, x[rows], jnp.asarray(t), method, effort, key, start)
        parts.append([array[..., : n - start] for array in part])
        if progress is not None:
            progress(min(start + size, n), n)
    value, error, effective, shared = (
        np.concatenate(part, -1) for part in zip(*parts, strict=True)
    )
    common = np.sqrt(np.sum(error**2)) / n
    if len(shared):
        each = shared.mean(axis=1)
        common = np.std(each, ddof=1) / len(each) ** 0.5
    if isinstance(model, NeuralEBM):
        log_z, log_z_error = _log_normaliser(model, jnp.asarray(t), effort, normaliser_key)
        value, error = value - log_z, np.hypot(error, log_z_error)
        common = np.hypot(common, log_z_error)
    return LogLikelihood(
        method=method,
        value=value,
        error=error,
        effective_samples=effective,
        monte_carlo_error=float(common) if np.isfinite(error).all() else float("inf"),
        dimensions=prod(model.data_shape),
        from_bytes=bool(from_bytes or (model.output == "sigmoid" and len(model.data_shape) == 3)),
    )


def resolved(
    model: AbstractModel,
    method: str,
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
) -> Effort:
    """What `log_likelihood` would spend with these arguments, or an error that says what is wrong."""
    if not isinstance(model, LatentModel):
        raise UserError(
            f"a {type(model).__name__} has no latents to integrate over, so its log p(x) cannot be "
            "estimated this way; compare its samples with data instead (FID, KID)."
        )
    if method not in DEFAULTS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(DEFAULTS)}.")
    if isinstance(model, NeuralEBM) and method != "ais":
        raise UserError(
            "a neural energy's prior is not normalised and cannot be drawn exactly, which method "
            f"{method!r} needs; use method 'ais', which anneals from the normal it tilts."
        )
    given = {"temperatures": temperatures, "steps": steps}
    if method == "importance" and (extra := [name for name in given if given[name] is not None]):
        raise ValueError(
            f"importance sampling has no {' or '.join(extra)}; leave that out, or choose another "
            "method."
        )
    rungs = temperatures
    if rungs is not None and not isinstance(rungs, int):
        rungs = len(rungs) - 1
    chosen = (samples, rungs, steps, batch)
    pairs = zip(chosen, DEFAULTS[method], strict=True)
    effort = Effort(*(usual if value is None else value for value, usual in pairs))
    least = Effort(2, 1, 1 if method in ("importance", "ais") else 8, 1)
    for name, value, low in zip(Effort._fields, effort, least, strict=True):
        if value < low:
            raise ValueError(f"{method} needs {name} of at least {low}, got {value}.")
    return effort


def _estimate(
    model: LatentModel,
    x: Array,
    t: Array,
    method: str,
    effort: Effort,
    key: PRNGKeyArray,
    start: int,
) -> tuple[Values, Values, Values, Values]:
    """Values, errors, effective sample sizes, and the relative error of each shared chunk of proposals."""
    own = jax.random.fold_in(key, start)  # of this batch; proposals from a prior serve all
    nothing_shared = np.empty((0, len(x)))
    if method == "importance":
        chunks = max(ceil(effort.samples / _CHUNK), min(effort.samples, 16))
        each = ceil(effort.samples / chunks)
        if isinstance(model, VAE):
            sums = _encoder_weights(model, x, own, chunks, each)
        else:
            sums = _prior_weights(model, x, key, chunks, each)
        first, second = (np.asarray(part, float) for part in sums)
        value, error, effective = _from_weights(first, chunks * each, second)
        relative = np.exp(first - np.log(each) - value) - 1
        return value, error, effective, nothing_shared if isinstance(model, VAE) else relative
    if method == "ais":
        log_w = annealed(_posterior_path, (model, x), t, effort.samples, len(x), own, effort.steps)
        return *_from_weights(np.asarray(log_w, float), effort.samples), nothing_shared
    seen = _tempered(model, x, t, effort.samples, effort.steps, own)
    draws = np.moveaxis(np.asarray(seen, float), (2, 0, 3, 1), (0, 1, 2, 3))  # [C, S, B, N+1]
    value, influence = ESTIMATORS[method](np.asarray(t, float), draws)
    effective = effective_sample_size(influence)
    error = influence.std(axis=(0, 1), ddof=1) / np.sqrt(effective)
    mixed = effective >= _COLLAPSED * effort.samples
    return value, np.where(mixed, error, np.inf), effective, nothing_shared


def _from_weights(
    log_w: Float[np.ndarray, "S B"], samples: int, log_squares: Values | None = None
) -> tuple[Values, Values, Values]:
    """The logarithm of the mean weight, its error by the delta method, and the effective sample size.

    Of weights, or of the sums of weights and of their squares over chunks of them.
    """
    total = special.logsumexp(log_w, axis=0)
    squares = special.logsumexp(2 * log_w if log_squares is None else log_squares, axis=0)
    effective = np.exp(2 * total - squares)
    variance = np.maximum(1 / effective - 1 / samples, 0) * samples / (samples - 1)
    error = np.where(effective < _COLLAPSED, np.inf, np.sqrt(variance))
    return total - np.log(samples), error, effective


def _log_sums(log_w: Float[Array, "B n"]) -> tuple[Array, Array]:
    return jax.nn.logsumexp(log_w, axis=1), jax.nn.logsumexp(2 * log_w, axis=1)


@eqx.filter_jit
def _prior_weights(
    model: LatentModel, x: Array, key: PRNGKeyArray, chunks: int, each: int
) -> tuple[Float[Array, "K B"], Float[Array, "K B"]]:
    def chunk(key: PRNGKeyArray) -> tuple[Array, Array]:
        means = model.decode(model.prior.sample(key, each))
        return _log_sums(model.log_likelihood_matrix(x, means))

    return jax.lax.map(chunk, jax.random.split(key, chunks))


@eqx.filter_jit
def _encoder_weights(
    model: VAE, x: Array, key: PRNGKeyArray, chunks: int, each: int
) -> tuple[Float[Array, "K B"], Float[Array, "K B"]]:
    r"""Of $w = p(x\mid z)\,p(z)/q(z\mid x)$ with draws of the encoder's $q$ (Burda et al., 2016)."""
    mean, log_variance = model.encoder(x)

    def draw(key: PRNGKeyArray) -> Array:
        noise = jax.random.normal(key, mean.shape)
        z = mean + jnp.exp(log_variance / 2) * noise
        log_ratio = 0.5 * jnp.sum(noise**2 - z**2 + log_variance, axis=1)
        return model.log_likelihood(x, model.decode(z)) + log_ratio

    def chunk(key: PRNGKeyArray) -> tuple[Array, Array]:
        return _log_sums(jax.lax.map(draw, jax.random.split(key, each)).T)

    return jax.lax.map(chunk, jax.random.split(key, chunks))


def _posterior_path(argument: Any) -> Any:
    return posterior_path(*argument)


@eqx.filter_jit
def _tempered(
    model: LatentModel, x: Array, t: Array, chains: int, steps: int, key: PRNGKeyArray
) -> Float[Array, "S N+1 C B"]:
    path = posterior_path(model, x)
    return tempered_chains(path, t, chains, len(x), key, burn_in=steps, steps=steps)


def _log_normaliser(
    model: NeuralEBM, t: Array, effort: Effort, key: PRNGKeyArray
) -> tuple[float, float]:
    """log Z of a neural prior, as a tilt of the standard normal, and its error."""
    log_w = annealed(prior_path, model.prior, t, _PRIOR_PARTICLES, 1, key, effort.steps)
    value, error, _ = _from_weights(np.asarray(log_w, float), _PRIOR_PARTICLES)
    return float(value[0]), float(error[0])


# The three below take l for chains and draws [C, S, ..., N+1] at the temperatures t, and return
# log p(x) with the influence of each draw on it: their mean is the error, to first order, so that
# correlations in time and between temperatures both enter the standard error.


def trapezoid(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""$\frac12\sum_k\Delta t_k(E_{k-1} + E_k)$."""
    each = np.trapezoid(draws, t, axis=-1)
    value = each.mean(axis=(0, 1))
    return value, each - value


def steppingstone(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""$\sum_k\log\mathbb{E}_{k-1}e^{\Delta t_k l}$ (Xie et al., 2011)."""
    return _log_means(np.diff(t) * draws[..., :-1])


def corrected(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""$\frac12\sum_k\log\mathbb{E}_{k-1}e^{\Delta t_k l} - \log\mathbb{E}_k e^{-\Delta t_k l}$ (eq. disc)."""
    forward = _log_means(np.diff(t) * draws[..., :-1])
    reverse = _log_means(-np.diff(t) * draws[..., 1:])
    value, influence = (0.5 * (up - down) for up, down in zip(forward, reverse, strict=True))
    return value, influence


def _log_means(log_w: Values) -> tuple[Values, Values]:
    """The sum over temperatures of logarithms of mean weights, and the influence of each draw."""
    top = log_w.max(axis=(0, 1))
    w = np.exp(log_w - top)
    mean = w.mean(axis=(0, 1))
    return np.sum(np.log(mean) + top, axis=-1), np.sum(w / mean - 1, axis=-1)


ESTIMATORS = {"trapezoid": trapezoid, "steppingstone": steppingstone, "corrected": corrected}
