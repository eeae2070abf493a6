r"""The kernel distance: unbiased squared MMD with the cubic kernel $k(x, y) = (x^\top y / D + 1)^3$.

$$\mathrm{MMD}^2 = \frac{1}{n(n-1)}\sum_{i\ne j} k(a_i, a_j) + \frac{1}{m(m-1)}\sum_{i\ne j} k(b_i, b_j)
 - \frac{2}{nm}\sum_{i,j} k(a_i, b_j)$$
has the same expectation at every $n, m \ge 2$. Its error comes from how much single samples move
it: to first order sample $a_i$ does so by
$2\,(\bar k(a_i, a) - \bar k(a_i, b))/n$ about the mean, and likewise $b_j$.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ...errors import UserError
from .frechet import Features, checked_pair

_BLOCK = 2048  # rows of kernel matrices held at once


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: float
    error: float


class Pairs(NamedTuple):
    """Sums of the kernel over pairs of samples, a sample with itself left out."""

    before: Float[np.ndarray, " n"]  # over the samples of the same set that come earlier
    after: Float[np.ndarray, " n"]  # ... and later
    across: Float[np.ndarray, " n"]  # over the other set


def kernel(x: Features, y: Features) -> Float[np.ndarray, "n m"]:
    """The cubic polynomial kernel."""
    base = x @ y.T / x.shape[1] + 1
    return base * base * base  # numpy's power is many times slower


def _blocks(n: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, n, _BLOCK)]


def _within(x: Features) -> tuple[np.ndarray, np.ndarray]:
    before, after = np.zeros(len(x)), np.zeros(len(x))
    for i, rows in enumerate(_blocks(len(x))):
        for columns in _blocks(len(x))[: i + 1]:
            k = kernel(x[rows], x[columns])
            if rows == columns:
                k = np.tril(k, -1)
            before[rows] += k.sum(axis=1)
            after[columns] += k.sum(axis=0)
    return before, after


def pairs(a: Features, b: Features) -> tuple[Pairs, Pairs]:
    """All the sums the estimates below are made of, for both sets, in bounded memory."""
    of_a, of_b = np.zeros(len(a)), np.zeros(len(b))
    for rows in _blocks(len(a)):
        for columns in _blocks(len(b)):
            k = kernel(a[rows], b[columns])
            of_a[rows] += k.sum(axis=1)
            of_b[columns] += k.sum(axis=0)
    return Pairs(*_within(a), of_a), Pairs(*_within(b), of_b)


def _moments(a: Pairs, b: Pairs) -> tuple[float, float, float]:
    """MMD^2, and the variance of what single samples of either set contribute to it."""
    n, m = len(a.across), len(b.across)
    inner_a, inner_b = (a.before + a.after) / (n - 1), (b.before + b.after) / (m - 1)
    value = inner_a.mean() + inner_b.mean() - 2 * a.across.mean() / m
    first = 4 * np.var(inner_a - a.across / m, ddof=1)
    second = 4 * np.var(inner_b - b.across / n, ddof=1)
    return float(value), float(first), float(second)


def estimate(a: Pairs, b: Pairs) -> Estimate:
    """MMD^2 with its first-order standard error, which is too large where the sets are alike."""
    value, first, second = _moments(a, b)
    return Estimate(value, float(np.sqrt(first / len(a.across) + second / len(b.across))))


def mmd(a: ArrayLike, b: ArrayLike) -> float:
    """The unbiased estimate of MMD^2 from all samples; negative values are noise about zero."""
    return estimate(*pairs(*checked_pair(a, b))).value


def kid(
    a: ArrayLike, b: ArrayLike, *, subsets: int = 100, subset_size: int = 1000, seed: int = 0
) -> Estimate:
    r"""The mean of MMD^2 over random subsets of both sets, as KID is usually reported.

    The error is that of the mean as an estimate of the distance between the two distributions,
    so that value $\pm$ 1.96 errors covers it 95 times of 100: the variance of single samples'
    contributions, averaged over the subsets, divided by the number of samples there are, plus
    the variance between subsets divided by their number. The spread of the subsets themselves,
    often quoted, says nothing about either. Where the sets are alike the error is too large.
    """
    x, y = checked_pair(a, b)
    n, m = len(x), len(y)
    if subset_size < 2 or subsets < 2:
        raise ValueError(
            f"got {subsets} subsets of {subset_size}, expected at least 2 subsets of at least 2."
        )
    if min(n, m) < subset_size:
        raise UserError(
            f"got {n} and {m} features, expected at least subset_size = {subset_size} of each; use "
            f"more samples, or a subset_size of at most {min(n, m)}."
        )
    rng = np.random.default_rng(seed)
    moments = np.empty((subsets, 3))
    for i in range(subsets):
        some = (z[rng.choice(len(z), subset_size, replace=False)] for z in (x, y))
        moments[i] = _moments(*pairs(*some))
    value, first, second = moments.mean(axis=0)
    between = moments[:, 0].var(ddof=1) / subsets
    return Estimate(float(value), float(np.sqrt(first / n + second / m + between)))
