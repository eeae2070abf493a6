r"""FID and KID at infinitely many samples, with intervals that cover.

The distance $F$ of $N$ samples exceeds its limit by $c_1/N + c_2/N^2 + \dots$ Chong and Forsyth
(2020) regress it on $1/N$ over subsets of the samples and report the intercept. Its usual
standard error is far too small, because the subsets share samples, and the line is biased where
$N$ is not much larger than the number $D$ of features. Here instead:

1. *What subsets share is taken out.* To first order sample $x$ moves $F$ by its influence
   $$h(x) = 2(\mu - \mu_r)^\top\tilde x + \tilde x^\top(I - T)\,\tilde x,\qquad \tilde x = x - \mu,
   \quad T = S_r^{1/2}(S_r^{1/2} S S_r^{1/2})^{-1/2} S_r^{1/2},$$
   centred. A subset's distance minus the mean of $h$ over it has the same expectation and differs
   from $F_N$ only in second order, by a quadratic form in its weights, so that two subsets $a, b$
   have a covariance proportional to $(|a\cap b|/|a||b| - 1/N)^2$. Generalised least squares uses it.
2. *The law is a cubic in $1/N$* through the value at all samples.
3. *The variance has three parts*: $\operatorname{Var} h / N$, of having these $N$ samples and no
   others; that of the fitted coefficients; and the squared difference between the cubic's intercept
   and the quadratic's, for the terms left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import linalg

from ...errors import UserError
from .frechet import Features, Statistics, alike, checked, distance_to, factor, statistics
from .kernel import estimate, pairs

_NORMAL = 1.959964  # the 97.5 % quantile of the standard normal
_DEGREE = 3
_LEAST = 200  # samples; the cubic needs more in many dimensions: 2 D, below which it does not cover
_SUBSETS = 5  # of each size at most; ten do not narrow the interval
_RIDGE = 0.05  # of a subset's variance: what third and higher orders add to the second


class Extrapolation(NamedTuple):
    """A limit with its standard error, 95 % interval, and the points it was extrapolated from.

    `coefficients` are those of the fitted curve in powers of 1/N, from the constant on; `r_squared`
    is that of a straight line in 1/N through the points, as it is commonly reported.
    """

    value: float
    error: float
    interval: tuple[float, float]
    r_squared: float
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    coefficients: tuple[float, ...]


def default_sizes(n: int) -> tuple[int, ...]:
    """Tenths of n: 2000, 4000, ..., 20000 for the 20,000 samples that are customary."""
    if n < _LEAST:
        raise UserError(
            f"got {n} samples, expected at least {_LEAST} to extrapolate from (20,000 are customary); "
            "use more samples, or report the distance at this number."
        )
    return tuple(n * tenth // 10 for tenth in range(1, 11))


def _sizes(sizes: Sequence[int] | None, n: int) -> list[int]:
    """Checked, ascending, and with n itself."""
    chosen = sorted({*(default_sizes(n) if sizes is None else map(int, sizes)), n})
    if len(chosen) <= _DEGREE + 1 or chosen[0] < 2 or chosen[-1] > n:
        raise ValueError(
            f"got sizes {list(sizes or ())}, expected at least {_DEGREE + 1} different ones from 2 to "
            f"{n - 1}; leave them out for tenths of {n}."
        )
    return chosen


def _enough(n: int, dimension: int, name: str) -> None:
    least = max(2 * dimension, _LEAST)
    if n < least:
        raise UserError(
            f"got {n} {name} samples of {dimension} features, expected at least {least}: with fewer "
            "the distance does not follow its law in 1/N. Use more samples, or report the distance "
            "at this number."
        )


def _summary(
    value: float, error: float, sizes: list[int], values: np.ndarray, coefficients: np.ndarray
) -> Extrapolation:
    spread = np.std(values) * np.std(1 / np.array(sizes))
    correlation = np.mean((values - values.mean()) / np.array(sizes)) / spread if spread else 0.0
    return Extrapolation(
        float(value),
        float(error),
        (float(value - _NORMAL * error), float(value + _NORMAL * error)),
        float(correlation**2),
        tuple(sizes),
        tuple(map(float, values)),
        tuple(map(float, coefficients)),
    )


def influence(
    x: Features, own: Statistics, other: Statistics, root: Float[np.ndarray, "D r"]
) -> Float[np.ndarray, " n"]:
    """h of each sample, given a factor of the other set's covariance."""
    centred = x - own.mean
    eigenvalues, vectors = linalg.eigh(root.T @ own.covariance @ root, check_finite=False)
    kept = eigenvalues > len(eigenvalues) * np.finfo(float).eps * eigenvalues[-1]
    moved = centred @ (root @ (vectors[:, kept] * eigenvalues[kept] ** -0.25))
    h = 2 * centred @ (own.mean - other.mean) + (centred**2).sum(1) - (moved**2).sum(1)
    return h - h.mean()


def _fit(
    size: np.ndarray, start: np.ndarray, gap: np.ndarray, n: int, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of (n / size)^k - 1 for subsets [start, start + size), and their covariance."""
    end = start + size
    shared = np.minimum(end[:, None], end) - np.maximum(start[:, None], start)
    covariance = (n * np.maximum(shared, 0) / np.outer(size, size) - 1) ** 2
    covariance += np.diag(_RIDGE * np.diag(covariance))
    design = (n / size[:, None]) ** np.arange(1, degree + 1) - 1
    whiten = np.linalg.cholesky(covariance)
    design, gap = (linalg.solve_triangular(whiten, each, lower=True) for each in (design, gap))
    solution = np.linalg.lstsq(design, gap, rcond=None)[0]
    residual = gap - design @ solution
    variance = residual @ residual / (len(gap) - degree)
    return solution, variance * np.linalg.inv(design.T @ design)


def fid_infinity(
    reference: Statistics | ArrayLike,
    fake: ArrayLike,
    *,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    extrapolate_reference: bool = False,
) -> Extrapolation:
    r"""The Frechet distance of infinitely many generated samples from the reference.

    The reference is held as it is, the custom, or with `extrapolate_reference` (which needs its
    features, not its statistics) taken to infinity as well: subsets then hold the same share of
    both sets. Each size takes up to five disjoint subsets; every subset costs one
    eigen-decomposition, 22 in all by default: for 20,000 samples of 2048 features minutes, and on a busy
    machine fewer with OPENBLAS_NUM_THREADS=1.
    """
    x = checked(fake, name="generated features")
    n, dimension = x.shape
    given = reference if isinstance(reference, Statistics) else None
    if given and extrapolate_reference:
        raise ValueError(
            "got statistics of the reference, expected its features to extrapolate it."
        )
    real = x[:0] if given else checked(reference, name="reference features")  # type: ignore[arg-type]
    target = given or statistics(real)
    alike(len(target.mean), dimension)
    _enough(n, dimension, "generated")
    if extrapolate_reference:
        _enough(len(real), dimension, "reference")
    chosen = _sizes(sizes, n)
    rng = np.random.default_rng(seed)
    whole, root = statistics(x), factor(target)
    full = distance_to(root, target, whole)
    order, h = rng.permutation(n), influence(x, whole, target, root)
    variance = h.var(ddof=1) / n
    if extrapolate_reference:
        real_order = rng.permutation(len(real))
        real_h = influence(real, target, whole, factor(whole))
        variance += real_h.var(ddof=1) / len(real)

    def difference(start: int, size: int) -> float:
        """From the distance at all samples, less what first order explains."""
        rows = order[start : start + size]
        drift, other, its_root = h[rows].mean(), target, root
        if extrapolate_reference:
            share = slice(start * len(real) // n, (start + size) * len(real) // n)
            other = statistics(real[real_order[share]])
            its_root, drift = factor(other), drift + real_h[real_order[share]].mean()
        return distance_to(its_root, other, statistics(x[rows])) - full - drift

    subsets = np.array(
        [(start, m) for m in chosen[:-1] for start in range(0, n - m + 1, m)[:_SUBSETS]]
    )
    gaps = np.array([difference(start, m) for start, m in subsets.tolist()])
    start, size = subsets.T.astype(float)
    coefficients, covariance = _fit(size, start, gaps, n, _DEGREE)
    lower, _ = _fit(size, start, gaps, n, _DEGREE - 1)
    value = full - coefficients.sum()
    variance += covariance.sum() + (coefficients.sum() - lower.sum()) ** 2
    values = full + np.array([*(gaps[size == m].mean() for m in chosen[:-1]), 0.0])
    powers = coefficients * float(n) ** np.arange(1, _DEGREE + 1)
    return _summary(value, variance**0.5, chosen, values, np.array([value, *powers]))


def kid_infinity(
    reference: ArrayLike, fake: ArrayLike, *, sizes: Sequence[int] | None = None, seed: int = 0
) -> Extrapolation:
    r"""The kernel distance at infinitely many samples: the unbiased estimate from all of them.

    $\mathrm{MMD}^2$ has the same expectation at every size, so its law in $1/N$ is a constant; a
    slope that is known to be zero would add variance and nothing else. The points, over growing
    parts of the generated samples, show that there is none. The error counts both sets.
    """
    y, x = checked(reference, name="reference features"), checked(fake, name="generated features")
    alike(y.shape[1], x.shape[1])
    chosen = _sizes(sizes, len(x))
    of_y, of_x = pairs(y, x[np.random.default_rng(seed).permutation(len(x))])
    value, error = estimate(of_y, of_x)
    count = np.array(chosen)
    inner = 2 * np.cumsum(of_x.before)[count - 1] / (count * (count - 1))
    across = np.cumsum(of_x.across)[count - 1] / (count * len(y))
    constant = np.mean(of_y.before + of_y.after) / (len(y) - 1)
    return _summary(value, error, chosen, constant + inner - 2 * across, np.array([value]))
