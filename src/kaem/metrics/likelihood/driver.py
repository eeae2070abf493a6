r"""$\log p(x)$ of held-out data, batch by batch, with the error of every number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...errors import UserError
from ...learning.schedules import checked_ladder
from ...models import AbstractModel, LatentModel
from ...posterior.annealing import annealed, prior_path
from .estimators import ESTIMATORS, Estimator, usual_ladder
from .rounds import Examples, Plan, common_error
from .task import Effort, from_weights

_PRIOR_PARTICLES = 512  # for the normaliser of a prior, which all examples share
TARGET_ERROR = 0.25  # nats: sixteen effective samples, where four are the least that mean anything


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
    passes: Float[np.ndarray, " n"] | None = None  # of the generator, that went into each example
    target_error: float | None = None  # that effort was to reach; None: it was stated

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
    target_error: float | None = None,
    budget: int | None = None,
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LogLikelihood:
    r"""Return log p(x) of each example [n, *data_shape] under a model with latents.

    `ESTIMATORS` has the methods. The generator's own noise is off, as it is when the model is
    sampled. Prior draws are by the prior's own inverse transform: 'exact' is, the paper's is as coarse
    as its nodes. With an encoder, `importance` and `ais` start near its guesses.

    Unless an effort is stated, that of `importance` and `ais` adapts: it doubles for the examples
    whose error is above the target, until none is or the next round would exceed the budget.

    **Arguments:** `x` are data as the model makes them, or bytes; `target_error` is the standard error in
    nats that each example should have (0.25), `budget` the passes of the generator that it may cost.
    `samples`, `temperatures` and `steps` state an effort instead: the number of proposals (`importance`),
    of independent chains for each example, or of particles (`ais`); the number of temperatures, spaced by a
    power law, or a ladder from 0 to 1; the draws kept of each chain after as many discarded ones, or the
    moves of a particle at each temperature. `batch` are the examples treated at once. What is usual for the
    method is taken for None. `progress` is called with the number of examples done and of all.
    """
    plan = planned(model, method, target_error, budget, samples, temperatures, steps, batch)
    latent = model.with_latents("log p(x)")
    from_bytes, x = np.asarray(x).dtype == np.uint8, latent.checked_data(x)
    if not (temperatures is None or isinstance(temperatures, int)):
        plan = plan._replace(ladder=jnp.asarray(checked_ladder(list(temperatures))))
    key, normaliser_key = jax.random.split(key)
    latent = latent.prepared()
    examples = Examples(ESTIMATORS[method], latent, x, min(plan.effort.batch, len(x)), key)
    run = examples.fixed if plan.target is None else examples.adaptive
    found, passes = run(plan, progress or (lambda done, of: None))
    value, error, common = found.value, found.error, common_error(found)
    if not latent.prior.exact:
        log_z, log_z_error = _log_normaliser(latent.prior, plan, normaliser_key)
        value, error = value - log_z, np.hypot(error, log_z_error)
        common = float(np.hypot(common, log_z_error))
    return LogLikelihood(
        method=method,
        value=value,
        error=error,
        effective_samples=found.effective,
        monte_carlo_error=common if np.isfinite(error).all() else float("inf"),
        dimensions=prod(model.data_shape),
        from_bytes=bool(from_bytes or (model.output == "sigmoid" and len(model.data_shape) == 3)),
        passes=passes,
        target_error=plan.target,
    )


def estimator(method: str) -> Estimator:
    """Return the estimator of a name, or say which there are."""
    if method not in ESTIMATORS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[method]


def planned(
    model: AbstractModel,
    method: str,
    target_error: float | None = None,
    budget: int | None = None,
    samples: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    steps: int | None = None,
    batch: int | None = None,
) -> Plan:
    """Return what `log_likelihood` would spend with these arguments, or raise, saying what is wrong."""
    latent = model.with_latents("log p(x), an integral over latents,")
    chosen = estimator(method)
    if not (latent.prior.exact or chosen.tilted):
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
    stated = [name for name, v in (given | {"samples": samples}).items() if v is not None]
    goals = {"target_error": target_error, "budget": budget}
    if goal := " and ".join(name for name, value in goals.items() if value is not None):
        adapting = " or ".join(name for name, other in ESTIMATORS.items() if other.budget)
        if not chosen.budget:
            raise ValueError(
                f"the effort of {method} does not adapt, so that it takes no {goal}; choose {adapting}."
            )
        if stated:
            raise ValueError(
                f"{goal} adapts the effort that {' and '.join(stated)} would state; give one or the other."
            )
    if target_error is not None and not target_error > 0:
        raise ValueError(f"a target_error must be positive, in nats, got {target_error}.")
    if budget is not None and budget < 1:
        raise ValueError(f"a budget is a number of passes of at least 1, got {budget}.")
    rungs = temperatures
    if rungs is not None and not isinstance(rungs, int):
        rungs = len(rungs) - 1
    pairs = zip((samples, rungs, steps, batch), chosen.usual(_has_encoder(latent)), strict=True)
    effort = Effort(*(usual if value is None else value for value, usual in pairs))
    least = Effort(2, 1, chosen.least_steps, 1)
    for name, value, low in zip(Effort._fields, effort, least, strict=True):
        if value < low:
            raise ValueError(f"{method} needs {name} of at least {low}, got {value}.")
    adapts = chosen.budget and not stated
    target = (target_error or TARGET_ERROR) if adapts else None
    return Plan(effort, target, budget or chosen.budget, None)


def _has_encoder(model: LatentModel) -> bool:
    one = jax.ShapeDtypeStruct((1, *model.data_shape), jnp.float32)
    return eqx.filter_eval_shape(model.folded().encoded, one) is not None


def _log_normaliser(prior: Any, plan: Plan, key: PRNGKeyArray) -> tuple[float, float]:
    """Return log Z of a prior that tilts what its path starts at, and its error."""
    t = usual_ladder(plan.effort.temperatures, near=False) if plan.ladder is None else plan.ladder
    log_w = annealed(prior_path, prior, t, _PRIOR_PARTICLES, 1, key, plan.effort.steps)
    found = from_weights(np.asarray(log_w, float))
    return float(found.value[0]), float(found.error[0])
