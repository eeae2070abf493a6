r"""$\log p(x)$ of held-out data, batch by batch, with the error of every number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...errors import UserError
from ...learning.schedules import checked_ladder, power_law
from ...models import AbstractModel
from ...posterior.annealing import annealed, prior_path
from .estimators import ESTIMATORS, Effort, Estimator, Task, from_weights

_EXPONENT = 4.0  # of the ladder: l has a standard deviation of 10^2 to 10^3 at the prior
_PRIOR_PARTICLES = 512  # for the normaliser of a prior, which all examples share


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
    model: AbstractModel,
    x: Float[Array | np.ndarray, "n ..."],
    *,
    key: PRNGKeyArray,
    method: str = "importance",
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LogLikelihood:
    r"""Return log p(x) of each example [n, *data_shape] under a model with latents.

    `ESTIMATORS` has the methods. The generator's own noise is off, as it is when the model is
    sampled. Prior draws are by the prior's own inverse transform: 'exact' is, the paper's is as coarse
    as its nodes.

    **Arguments:** `x` are data as the model makes them, or bytes; `samples` the number of
    proposals (`importance`), of independent chains for each example, or of particles (`ais`);
    `temperatures` their number, spaced by a power law, or a ladder from 0 to 1; `steps` the draws
    kept of each chain after as many discarded ones, or the moves of a particle at each
    temperature; `batch` the examples treated at once; what is usual for the method is taken for None.
    `progress` is called with the number of examples done and of all.
    """
    effort = resolved(model, method, samples, temperatures, steps, batch)
    latent = model.with_latents("log p(x)")
    from_bytes, x = np.asarray(x).dtype == np.uint8, latent.checked_data(x)
    if temperatures is None or isinstance(temperatures, int):
        t = jnp.asarray(power_law(effort.temperatures, _EXPONENT))
    else:
        t = jnp.asarray(checked_ladder(list(temperatures)))
    key, normaliser_key = jax.random.split(key)
    latent, n, parts = latent.prepared(), len(x), []
    size = min(effort.batch, n)
    for start in range(0, n, size):
        rows = np.arange(start, start + size) % n  # a last batch of full size compiles nothing new
        own = jax.random.fold_in(key, start)
        part = ESTIMATORS[method].estimate(Task(latent, x[rows], t, effort, key, own))
        parts.append([array[..., : n - start] for array in part])
        if progress is not None:
            progress(min(start + size, n), n)
    value, error, effective, shared = (
        np.concatenate(part, -1) for part in zip(*parts, strict=True)
    )
    common = np.sqrt(np.sum(error**2)) / n
    if len(shared):
        by_chunk = shared.mean(axis=1)
        common = np.std(by_chunk, ddof=1) / len(by_chunk) ** 0.5
    if not latent.prior.exact:
        log_z, log_z_error = _log_normaliser(latent.prior, t, effort, normaliser_key)
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


def estimator(method: str) -> Estimator:
    """Return the estimator of a name, or say which there are."""
    if method not in ESTIMATORS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[method]


def resolved(
    model: AbstractModel,
    method: str,
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
) -> Effort:
    """Return what `log_likelihood` would spend with these arguments, or raise, saying what is wrong."""
    prior = model.with_latents("log p(x), an integral over latents,").prior
    chosen = estimator(method)
    if not (prior.exact or chosen.tilted):
        others = " or ".join(repr(name) for name, other in ESTIMATORS.items() if other.tilted)
        raise UserError(
            "a neural energy's prior is not normalised and cannot be drawn exactly, which method "
            f"{method!r} needs; use method {others}, which anneals from the normal it tilts."
        )
    given = {"temperatures": temperatures, "steps": steps}
    if not chosen.ladder and (extra := [name for name in given if given[name] is not None]):
        what = " or ".join(extra)
        raise ValueError(
            f"{method} sampling has no {what}; leave that out, or choose another method."
        )
    rungs = temperatures
    if rungs is not None and not isinstance(rungs, int):
        rungs = len(rungs) - 1
    pairs = zip((samples, rungs, steps, batch), chosen.effort, strict=True)
    effort = Effort(*(usual if value is None else value for value, usual in pairs))
    least = Effort(2, 1, chosen.least_steps, 1)
    for name, value, low in zip(Effort._fields, effort, least, strict=True):
        if value < low:
            raise ValueError(f"{method} needs {name} of at least {low}, got {value}.")
    return effort


def _log_normaliser(
    prior: Any, t: Float[Array, " N+1"], effort: Effort, key: PRNGKeyArray
) -> tuple[float, float]:
    """Return log Z of a prior that tilts what its path starts at, and its error."""
    log_w = annealed(prior_path, prior, t, _PRIOR_PARTICLES, 1, key, effort.steps)
    value, error, _ = from_weights(np.asarray(log_w, float), _PRIOR_PARTICLES)
    return float(value[0]), float(error[0])
