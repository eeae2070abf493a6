"""What an estimator of log p(x) is given, and what it returns."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import special

from ...models import LatentModel
from ...posterior.local import Local

Values = Float[np.ndarray, "..."]

COLLAPSED = 4.0  # with fewer effective samples, or draws of a chain, errors mean nothing
_ROUNDING = (
    2.0**-21
)  # of a logarithm of weights, four units in its last place: no draw averages it away


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
    local: Local | None  # refined guesses of an encoder, if the model has one
    t: Float[Array, " N+1"]
    effort: Effort
    shared: PRNGKeyArray  # of what serves all batches, such as proposals from the prior
    own: PRNGKeyArray  # of this batch


class Estimate(NamedTuple):
    """Estimates of log p(x) of a batch."""

    value: Float[np.ndarray, " B"]
    error: Float[np.ndarray, " B"]
    effective: Float[np.ndarray, " B"]
    number: Float[np.ndarray, " B"]  # of weights
    shared: Float[np.ndarray, "K B"]  # of chunks of proposals that examples share: log mean weights


def from_weights(
    log_w: Float[np.ndarray, "S B"], log_squares: Values | None = None, samples: int | None = None
) -> Estimate:
    """Return the logarithm of the mean weight, with its error by the delta method.

    Of weights, or of the sums of weights and of their squares over chunks of `samples` in all.
    """
    number = np.full(log_w.shape[1], float(samples or len(log_w)))
    total = special.logsumexp(log_w, axis=0)
    squares = special.logsumexp(2 * log_w if log_squares is None else log_squares, axis=0)
    return from_sums(total, squares, number, np.empty((0, log_w.shape[1])))


def from_sums(total: Values, squares: Values, number: Values, shared: Values) -> Estimate:
    """Return the same, of the logarithms of the sums of `number` weights and of their squares."""
    effective = np.exp(2 * total - squares)
    value = total - np.log(number)
    variance = np.maximum(1 / effective - 1 / number, 0) * number / (number - 1)
    error = np.hypot(np.sqrt(variance), _ROUNDING * np.maximum(1, np.abs(value)))
    return Estimate(
        value, np.where(effective < COLLAPSED, np.inf, error), effective, number, shared
    )
