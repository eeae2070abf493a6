"""Examples through an estimator: with an effort that is stated, or in rounds that adapt it.

A round doubles what each example has: as many proposals again, whose weights are pooled with earlier
ones, or twice the temperatures, whose weights take the place of earlier ones. Examples that have reached
the target leave. Rows of a batch that would be empty serve the examples that are left once more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...models import LatentModel
from ...posterior.local import Local, refined, refinement_passes
from .estimators import Estimator, usual_ladder
from .task import Effort, Estimate, Task, from_sums

Rows = Int[np.ndarray, " B"]


class Plan(NamedTuple):
    """An effort, and what the rounds that begin with it should reach; without a target there is one."""

    effort: Effort
    target: float | None  # the error of an example
    budget: int  # passes of the generator for an example
    ladder: Float[Array, " N+1"] | None  # None: the usual one


class Outcome(NamedTuple):
    """Estimates for all examples, and the passes of the generator that each has cost."""

    estimate: Estimate
    passes: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Examples:
    """Examples, a way to estimate their log p(x), and refined guesses where an encoder makes them."""

    chosen: Estimator
    model: LatentModel
    x: Float[Array, "n ..."]
    size: int  # of a batch
    key: PRNGKeyArray
    local: Local | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "local", self._guesses() if self.chosen.near else None)

    def _guesses(self) -> Local | None:
        key, parts = jax.random.fold_in(self.key, 2**32 - 1), []
        for start, rows in _batches(np.arange(len(self.x)), self.size):
            guess = self.model.encoded(self.x[rows])
            if guess is None:
                return None
            found = refined(self.model, self.x[rows], guess, jax.random.fold_in(key, start))
            parts.append([np.asarray(part)[: len(self.x) - start] for part in found])
        mean, factor = (jnp.asarray(np.concatenate(part)) for part in zip(*parts, strict=True))
        return Local(mean, factor)

    @property
    def refinement(self) -> int:
        """Return the passes of the generator that went into the guess of an example."""
        return 0 if self.local is None else refinement_passes(self.local.mean.shape[1])

    def passes(self, effort: Effort) -> int:
        """Return the passes of the generator that an effort costs an example, without its guess."""
        return self.chosen.passes(effort, near=self.local is not None)

    @property
    def share_proposals(self) -> bool:
        """Return whether one draw serves all examples."""
        return self.local is None and not self.chosen.ladder

    def batch(
        self, rows: Rows, plan: Plan, effort: Effort, shared: PRNGKeyArray, own: PRNGKeyArray
    ) -> Estimate:
        """Return estimates for the examples of some rows."""
        local = None if self.local is None else self.local.of(rows)
        t = plan.ladder
        if t is None:
            t = usual_ladder(effort.temperatures, near=local is not None)
        return self.chosen.estimate(Task(self.model, self.x[rows], local, t, effort, shared, own))

    def fixed(self, plan: Plan, progress: Callable[[int, int], None]) -> Outcome:
        """Spend the effort on every example."""
        n, parts = len(self.x), []
        for start, rows in _batches(np.arange(n), self.size):
            own = jax.random.fold_in(self.key, start)
            part = self.batch(rows, plan, plan.effort, self.key, own)
            parts.append([array[..., : n - start] for array in part])
            progress(min(start + self.size, n), n)
        estimate = Estimate(*(np.concatenate(part, -1) for part in zip(*parts, strict=True)))
        passes = self.refinement + self.passes(plan.effort)
        return Outcome(estimate, np.full(n, float(passes)))

    def adaptive(self, plan: Plan, progress: Callable[[int, int], None]) -> Outcome:
        """Spend rounds of effort on examples until their errors are below the target, or the budget is spent."""
        assert plan.target is not None
        n, effort, repeats, unit = len(self.x), plan.effort, 1, 0
        passes, pending, pool = np.full(n, float(self.refinement)), np.arange(n), _Pool.empty(n)
        while True:
            if self.chosen.ladder:
                pool.forget(pending)
            rows = pending if self.share_proposals else np.repeat(pending, repeats)
            for turn in range(repeats if self.share_proposals else 1):
                shared = jax.random.fold_in(self.key, unit + turn)
                for start, batch in _batches(rows, self.size):
                    own = jax.random.fold_in(shared, start)
                    part = self.batch(batch, plan, effort, shared, own)
                    use = len(rows) - start if self.share_proposals else len(batch)
                    pool.add(unit + turn, batch[:use], part)
                    np.add.at(passes, batch[:use], self.passes(effort))
                    progress(n - len(pending), n)
            unit += repeats
            found = pool.estimate()
            pending = np.flatnonzero(found.error > plan.target)
            if self.chosen.ladder:
                effort = effort._replace(temperatures=2 * effort.temperatures)
            else:
                repeats = unit  # as many again
            cost = repeats * self.passes(effort)
            pending = pending[passes[pending] + cost <= plan.budget]
            progress(n - len(pending), n)
            if not len(pending):
                return Outcome(found, passes)


@dataclass
class _Pool:
    """Sums of weights, and of their squares, of examples; and what proposals in common say chunk by chunk."""

    total: Float[np.ndarray, " n"]
    squares: Float[np.ndarray, " n"]
    number: Float[np.ndarray, " n"]
    shared: dict[int, Float[np.ndarray, "K n"]]  # NaN for examples that did not take part

    @classmethod
    def empty(cls, n: int) -> "_Pool":
        return cls(np.full(n, -np.inf), np.full(n, -np.inf), np.zeros(n), {})

    def forget(self, rows: Rows) -> None:
        self.total[rows], self.squares[rows], self.number[rows] = -np.inf, -np.inf, 0

    def add(self, unit: int, rows: Rows, part: Estimate) -> None:
        value, _, effective, number, shared = (array[..., : len(rows)] for array in part)
        sums = value + np.log(number)
        np.logaddexp.at(self.total, rows, sums)
        np.logaddexp.at(self.squares, rows, 2 * sums - np.log(effective))
        np.add.at(self.number, rows, number)
        if len(shared):
            blank = np.full((len(shared), len(self.total)), np.nan)
            self.shared.setdefault(unit, blank)[:, rows] = shared

    def estimate(self) -> Estimate:
        shared = list(self.shared.values()) or [np.empty((0, len(self.total)))]
        return from_sums(self.total, self.squares, self.number, np.concatenate(shared))


def common_error(estimate: Estimate) -> float:
    """Return the Monte Carlo error of the mean over examples: proposals in common make them err together."""
    n = len(estimate.value)
    if not len(estimate.shared):
        return float(np.sqrt(np.sum(estimate.error**2)) / n)
    took_part = ~np.isnan(estimate.shared)
    relative = np.where(took_part, np.exp(estimate.shared - estimate.value) - 1, 0)
    by_chunk = np.mean(relative / took_part.sum(axis=0), axis=1)
    chunks = len(by_chunk)
    return float(np.sqrt(np.sum(by_chunk**2) * chunks / (chunks - 1)))


def _batches(rows: Rows, size: int) -> Iterator[tuple[int, Rows]]:
    """Yield batches of rows with their first places; a last one of full size, which compiles nothing new."""
    for start in range(0, len(rows), size):
        yield start, rows[np.arange(start, start + size) % len(rows)]
