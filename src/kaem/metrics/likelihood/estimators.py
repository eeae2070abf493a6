r"""Estimators of $\log p(x)$, each with its error.

With $l(z) = \log p(x\mid z)$ and power posteriors $p_t \propto p(z)\,e^{t\,l(z)}$, whose mean of $l$ is $E_t$:

- *importance*: $\log\frac1S\sum_s w_s$ with $z_s$ from the prior and $w = e^l$, or from an encoder;
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

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import special

from ...models import LatentModel
from ...posterior.annealing import annealed, posterior_path, tempered_chains
from ..diagnostics import effective_sample_size

Values = Float[np.ndarray, "..."]

_CHUNK = 256  # proposals decoded at once
_COLLAPSED = 4.0  # with fewer effective samples, or draws of a chain, errors mean nothing


class Effort(NamedTuple):
    """What a method spends on an example, and how many examples it takes at once."""

    samples: int  # proposals, chains, or particles
    temperatures: int  # N_t
    steps: int  # draws kept of each chain (as many go before), or moves at each temperature
    batch: int


class Task(NamedTuple):
    """A batch of examples, and what may be spent on it."""

    model: LatentModel
    x: Float[Array, "B ..."]
    t: Float[Array, " N+1"]
    effort: Effort
    shared: PRNGKeyArray  # of what serves all batches, such as proposals from the prior
    own: PRNGKeyArray  # of this batch


# log p(x) of a batch, its error, effective sample sizes, and the relative errors [K, B] of chunks of
# proposals that all examples share, if there are any.
Estimate = tuple[Values, Values, Values, Values]


@dataclass(frozen=True)
class Estimator:
    """A way to estimate log p(x), and what is known about it."""

    help: str
    estimate: Callable[[Task], Estimate]
    effort: Effort  # usually
    bound: bool = False  # whether it averages weights whose mean is p(x)
    tilted: bool = False  # whether it can start at what a prior tilts, and not at the prior
    ladder: bool = True  # whether it has temperatures and steps
    least_steps: int = 1


def from_weights(
    log_w: Float[np.ndarray, "S B"], samples: int, log_squares: Values | None = None
) -> tuple[Values, Values, Values]:
    """Return the logarithm of the mean weight, its error by the delta method, and the effective sample size.

    Of weights, or of the sums of weights and of their squares over chunks of them.
    """
    total = special.logsumexp(log_w, axis=0)
    squares = special.logsumexp(2 * log_w if log_squares is None else log_squares, axis=0)
    effective = np.exp(2 * total - squares)
    variance = np.maximum(1 / effective - 1 / samples, 0) * samples / (samples - 1)
    error = np.where(effective < _COLLAPSED, np.inf, np.sqrt(variance))
    return total - np.log(samples), error, effective


def _importance(task: Task) -> Estimate:
    samples = task.effort.samples
    chunks = max(ceil(samples / _CHUNK), min(samples, 16))
    each = ceil(samples / chunks)
    *sums, shared = _weights(task.model, task.x, task.shared, task.own, chunks, each)
    first, second = (np.asarray(part, float) for part in sums)
    value, error, effective = from_weights(first, chunks * each, second)
    relative = np.exp(first - np.log(each) - value) - 1
    return value, error, effective, relative if shared else relative[:0]


@eqx.filter_jit
def _weights(
    model: LatentModel,
    x: Float[Array, "B ..."],
    shared: PRNGKeyArray,
    own: PRNGKeyArray,
    chunks: int,
    each: int,
) -> tuple[Float[Array, "K B"], Float[Array, "K B"], bool]:
    r"""Return sums of weights and of their squares over chunks of proposals, and whether all share these.

    With an encoder, $w = p(x\mid z)\,p(z)/q(z\mid x)$ of draws of its $q$ (Burda et al., 2016).
    """
    guess = model.encoded(x)

    def drawn(key: PRNGKeyArray) -> Float[Array, " B"]:
        assert guess is not None
        z = guess.draw(key)
        log_ratio = model.prior.log_prob(z) - guess.log_prob(z)
        return model.log_likelihood(x, model.decode(z)) + log_ratio

    def chunk(key: PRNGKeyArray) -> tuple[Array, Array]:
        if guess is None:
            means = model.decode(model.prior.sample(key, each))
            log_w = model.log_likelihood_matrix(x, means)
        else:
            log_w = jax.lax.map(drawn, jax.random.split(key, each)).T
        return jax.nn.logsumexp(log_w, axis=1), jax.nn.logsumexp(2 * log_w, axis=1)

    keys = jax.random.split(shared if guess is None else own, chunks)
    return *jax.lax.map(chunk, keys), guess is None


def _ais(task: Task) -> Estimate:
    model, x, t, effort, _, key = task
    log_w = annealed(_path, (model, x), t, effort.samples, len(x), key, effort.steps)
    return *from_weights(np.asarray(log_w, float), effort.samples), np.empty((0, len(x)))


def _path(argument: Any) -> Any:
    return posterior_path(*argument)


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
        model, x, t, effort, _, key = task
        seen = _tempered(model, x, t, effort.samples, effort.steps, key)
        draws = np.moveaxis(np.asarray(seen, float), (2, 0, 3, 1), (0, 1, 2, 3))  # [C, S, B, N+1]
        value, influence = formula(np.asarray(t, float), draws)
        effective = effective_sample_size(influence)
        error = influence.std(axis=(0, 1), ddof=1) / np.sqrt(effective)
        mixed = effective >= _COLLAPSED * effort.samples
        return value, np.where(mixed, error, np.inf), effective, np.empty((0, len(x)))

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
        "weights of draws from the prior, or from an encoder: a lower bound",
        _importance,
        Effort(16_384, 1, 1, 256),
        bound=True,
        ladder=False,
    ),
    "trapezoid": _along_chains("thermodynamic integration over power posteriors", trapezoid),
    "corrected": _along_chains("the trapezoid with its Kullback-Leibler correction", corrected),
    "steppingstone": _along_chains("ratios of neighbouring power posteriors", steppingstone),
    "ais": Estimator(
        "particles annealed from the prior: a lower bound, for every prior",
        _ais,
        Effort(32, 200, 1, 64),
        bound=True,
        tilted=True,
    ),
}
