r"""Estimators of $\log p(x)$, each with its error.

With $l(z) = \log p(x\mid z)$ and power posteriors $p_t \propto p(z)\,e^{t\,l(z)}$, whose mean of $l$ is $E_t$:

- *importance*: $\log\frac1S\sum_s w_s$ with $z_s$ from the prior and $w = e^l$, or near an encoder's guess;
- *trapezoid*: $\frac12\sum_k\Delta t_k(E_{k-1} + E_k)$, which is off by $O(1/N_t^2)$;
- *steppingstone*: $\sum_k \log\mathbb{E}_{k-1}e^{\Delta t_k l}$;
- *corrected*: the trapezoid and its Kullback-Leibler correction (eq. disc);
- *ais*: $\log\frac1M\sum_m w_m$ of particles annealed from the prior; with an encoder $w = w_q + w_p$, of
  pairs of which one begins at its refined guess, and the other at the prior (`kaem.posterior.annealing`).

In exact algebra the correction turns the trapezoid into steppingstone. Here each divergence is
estimated with draws of its own first argument, as its definition asks:
$\mathrm{KL}(p_{k-1}\|p_k) = -\Delta t_k E_{k-1} + \log\mathbb{E}_{k-1}e^{\Delta t_k l}$ from below and
$\mathrm{KL}(p_k\|p_{k-1}) = \Delta t_k E_k + \log\mathbb{E}_k e^{-\Delta t_k l}$ from above. The $E_k$ cancel,
and what remains is the mean of the forward and the reverse steppingstone: a logarithm of a mean is
biased downwards in the one and upwards in the other, and half of each cancels to first order.

A logarithm of weights is never too high in expectation, and its error is that of the delta
method. Every density proposes: with an encoder, weights are of its guess as refined for each example
(`kaem.posterior.local`). Errors are of Monte Carlo only: the trapezoid's own is for `corrected` to show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...learning.schedules import power_law
from ...models import LatentModel
from ...posterior.annealing import (
    PILOT,
    annealed,
    far_path,
    near_path,
    posterior_path,
    tempered_chains,
)
from ..diagnostics import effective_sample_size
from .importance import importance
from .task import COLLAPSED, Effort, Estimate, Task, Values, from_weights

_EXPONENT = 4.0  # of the ladder: l has a standard deviation of 10^2 to 10^3 at the prior
_NEAR_EXPONENT = 1.5  # of that from a refined guess, whose tails are hardly ever right
_FARTHER = 4  # temperatures from the prior for each from a guess


@dataclass(frozen=True)
class Estimator:
    """A way to estimate log p(x), and what is known about it."""

    help: str
    estimate: Callable[[Task], Estimate]
    effort: Effort  # usually; where it adapts, to begin with
    near: Effort | None = None  # the same from guesses of an encoder, if it can start there
    budget: int = 0  # passes of the generator for an example, where effort adapts; 0: it does not
    bound: bool = False  # whether it averages weights whose mean is p(x)
    tilted: bool = False  # whether it can start at what a prior tilts, and not at the prior
    ladder: bool = True  # whether it has temperatures and steps
    least_steps: int = 1

    def usual(self, near: bool) -> Effort:
        """Return what it usually spends, near an encoder's guess or without."""
        return self.near if near and self.near is not None else self.effort

    def passes(self, effort: Effort, near: bool) -> int:
        """Return the passes of the generator that go into weights of an example, with a guess or without."""
        if not self.ladder:
            return effort.samples
        particles = effort.samples + min(effort.samples, PILOT)
        return particles * effort.temperatures * effort.steps * (1 + _FARTHER if near else 1)


def usual_ladder(number: int, near: bool) -> Float[Array, " N+1"]:
    """Return so many temperatures by the power law for a path from the prior, or from near a guess."""
    return jnp.asarray(power_law(number, _NEAR_EXPONENT if near else _EXPONENT))


def _ais(task: Task) -> Estimate:
    model, x, local, t, effort, _, key = task

    def weights(path: Any, argument: Any, t: Array, key: PRNGKeyArray) -> Float[np.ndarray, "M B"]:
        found = annealed(path, argument, t, effort.samples, len(x), key, effort.steps)
        return np.asarray(found, float)

    if local is None:
        return from_weights(weights(_path, (model, x), t, key))
    near_key, far_key = jax.random.split(key)
    near = weights(_near, (model, x, local), t, near_key)
    slower = usual_ladder(_FARTHER * effort.temperatures, near=False)
    return from_weights(np.logaddexp(near, weights(_far, (model, x, local), slower, far_key)))


def _path(argument: Any) -> Any:
    return posterior_path(*argument)


def _near(argument: Any) -> Any:
    return near_path(*argument)


def _far(argument: Any) -> Any:
    return far_path(*argument)


@eqx.filter_jit
def _tempered(
    model: LatentModel, x: Array, t: Array, chains: int, steps: int, key: PRNGKeyArray
) -> Float[Array, "S N+1 C B"]:
    path = posterior_path(model, x)
    return tempered_chains(path, t, chains, len(x), key, burn_in=steps, steps=steps)


# A formula takes l for chains and draws [C, S, ..., N+1] at the temperatures t, and returns log p(x)
# with the influence of each draw on it: their mean is the error, to first order, so that correlations
# in time and between temperatures both enter the standard error.
Formula = Callable[[Values, Values], tuple[Values, Values]]


def _along_chains(help: str, formula: Formula) -> Estimator:
    def estimate(task: Task) -> Estimate:
        model, x, _, t, effort, _, key = task
        seen = _tempered(model, x, t, effort.samples, effort.steps, key)
        draws = np.moveaxis(np.asarray(seen, float), (2, 0, 3, 1), (0, 1, 2, 3))  # [C, S, B, N+1]
        value, influence = formula(np.asarray(t, float), draws)
        effective = effective_sample_size(influence)
        error = influence.std(axis=(0, 1), ddof=1) / np.sqrt(effective)
        mixed = effective >= COLLAPSED * effort.samples
        error = np.where(mixed, error, np.inf)
        return Estimate(value, error, effective, np.full(len(x), np.nan), np.empty((0, len(x))))

    return Estimator(help, estimate, Effort(8, 32, 200, 16), least_steps=8)


def trapezoid(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""Return $\frac12\sum_k\Delta t_k(E_{k-1} + E_k)$."""
    by_draw = np.trapezoid(draws, t, axis=-1)
    value = by_draw.mean(axis=(0, 1))
    return value, by_draw - value


def steppingstone(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""Return $\sum_k\log\mathbb{E}_{k-1}e^{\Delta t_k l}$ (Xie et al., 2011)."""
    return _log_means(np.diff(t) * draws[..., :-1])


def corrected(t: Values, draws: Values) -> tuple[Values, Values]:
    r"""Return $\frac12\sum_k\log\mathbb{E}_{k-1}e^{\Delta t_k l} - \log\mathbb{E}_k e^{-\Delta t_k l}$ (eq. disc)."""
    forward = _log_means(np.diff(t) * draws[..., :-1])
    reverse = _log_means(-np.diff(t) * draws[..., 1:])
    value, influence = (0.5 * (up - down) for up, down in zip(forward, reverse, strict=True))
    return value, influence


def _log_means(log_w: Values) -> tuple[Values, Values]:
    """Return the sum over temperatures of logarithms of mean weights, and the influence of each draw."""
    top = log_w.max(axis=(0, 1))
    w = np.exp(log_w - top)
    mean = w.mean(axis=(0, 1))
    return np.sum(np.log(mean) + top, axis=-1), np.sum(w / mean - 1, axis=-1)


ESTIMATORS: dict[str, Estimator] = {
    "importance": Estimator(
        "weights of draws from the prior, or near an encoder's guess: a lower bound",
        importance,
        Effort(16_384, 1, 1, 256),
        near=Effort(1024, 1, 1, 64),
        budget=131_072,
        bound=True,
        ladder=False,
    ),
    "trapezoid": _along_chains("thermodynamic integration over power posteriors", trapezoid),
    "corrected": _along_chains("the trapezoid with its Kullback-Leibler correction", corrected),
    "steppingstone": _along_chains("ratios of neighbouring power posteriors", steppingstone),
    "ais": Estimator(
        "particles annealed from the prior, or an encoder's guess: a lower bound, for every prior",
        _ais,
        Effort(32, 200, 1, 64),
        near=Effort(32, 16, 1, 64),
        budget=32_768,
        bound=True,
        tilted=True,
    ),
}
