r"""Densities of sources that adapt to them: any shape, any tail.

$\log p(y) = c\cdot B(\operatorname{asinh} y) + \log\mu(y)$ with cubic B-splines $B$ and $\mu$ a Student's $t$ with three degrees
of freedom. $\operatorname{asinh}$ puts knots where sources of unit variance are and still reaches far: a straight
line in it is a power of $|y|$. Everything is tabulated on nodes uniform in $\operatorname{asinh} y$, between which
sources are binned linearly.
"""

from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline

from .exponential import maximise, simpson

_REACH = 5.0  # of asinh y: sources count up to 74 standard deviations
_FUNCTIONS = 36
_CELLS = 256
_NODES = 2 * _CELLS + 1
_SMOOTHNESS = 1e-4  # of second differences of coefficients, beside the mean log-likelihood


class Places(NamedTuple):
    """Where sources are among the nodes: the node below, and the share of the way to the next."""

    below: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, y: Float[np.ndarray, "Q n"]) -> Self:
        position = np.clip((np.arcsinh(y) + _REACH) * (_CELLS / _REACH), 0, _NODES - 1)
        below = np.minimum(position.astype(np.int32), _NODES - 2)
        rows = np.arange(len(y), dtype=np.int32)[:, None] * _NODES
        return cls(below + rows, position - below)

    def binned(self) -> Float[np.ndarray, "Q N"]:
        """Return the weight of the sources on each node."""
        q, n = self.share.shape
        below, share = self.below.ravel(), self.share.ravel()
        counts = np.bincount(below, 1 - share, q * _NODES)
        counts = counts + np.bincount(below + 1, share, q * _NODES)
        return counts.reshape(q, _NODES) / n

    def at(self, table: Float[np.ndarray, "Q N"]) -> Float[np.ndarray, "Q n"]:
        """Return what a table holds at the sources, by linear interpolation."""
        flat = table.astype(np.float32).ravel()
        low = flat[self.below]
        return low + self.share * (flat[self.below + 1] - low)


class Densities(NamedTuple):
    """Log-densities and scores of Q sources on the nodes, coefficients, and what these cost."""

    log_p: Float[np.ndarray, "Q N"]
    score: Float[np.ndarray, "Q N"]
    coefficients: Float[np.ndarray, "Q B"]
    cost: Float[np.ndarray, " Q"]

    def value(self, weights: Float[np.ndarray, "Q N"]) -> float:
        """Return the mean log-density of binned sources, less the penalty."""
        return float(np.mean(np.sum(weights * self.log_p, axis=1) - self.cost))


class Family:
    """What all densities share: splines and their slopes on the nodes, reference and penalty."""

    def __init__(self) -> None:
        x = np.linspace(-_REACH, _REACH, _NODES)
        step = 2 * _REACH / (_FUNCTIONS - 3)
        splines = BSpline(-_REACH + step * np.arange(-3, _FUNCTIONS + 1), np.eye(_FUNCTIONS), 3)
        y, per_unit = np.sinh(x), 1 / np.cosh(x)
        self.features, self.slopes = splines(x), splines(x, 1) * per_unit[:, None]
        self.reference, self.reference_slope = -2 * np.log1p(y**2 / 3), -4 * y / (3 + y**2)
        self.log_measure = self.reference + np.log(simpson(_CELLS) * 2 * _REACH / per_unit)
        differences = np.diff(np.eye(_FUNCTIONS), 2, axis=0)
        self.penalty = _SMOOTHNESS * differences.T @ differences + 1e-6 * np.eye(_FUNCTIONS)

    def fit(self, weights: Float[np.ndarray, "Q N"], start: Densities | None = None) -> Densities:
        """Return the likeliest densities of binned sources; Newton's method begins at `start`."""
        begin = None if start is None else start.coefficients
        c = maximise(weights @ self.features, self.features, self.log_measure, self.penalty, begin)
        tilted = c @ self.features.T
        total = np.logaddexp.reduce(tilted + self.log_measure, axis=1, keepdims=True)
        score = c @ self.slopes.T + self.reference_slope
        cost = 0.5 * np.sum(c * (c @ self.penalty), axis=1)
        return Densities(tilted + self.reference - total, score, c, cost)
