r"""The Frechet distance between two sets of features, each summed up as a Gaussian.

With means $\mu_a, \mu_b$ and covariances $A, B$,
$$d^2 = |\mu_a - \mu_b|^2 + \operatorname{tr} A + \operatorname{tr} B - 2\operatorname{tr}(AB)^{1/2}.$$
$AB$ is not symmetric and its square root is fragile. With any $H$ such that $A = HH^\top$ the
product has the non-zero eigenvalues of $H^\top B H$, which is symmetric, so that
$\operatorname{tr}(AB)^{1/2} = \sum_i \lambda_i(H^\top B H)^{1/2}$. Fewer samples than features make
$H$ narrow: the null space, whose rounding errors a square root would blow up, never enters.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import linalg

from ...errors import UserError

Features = Float[np.ndarray, "n D"]


class Statistics(NamedTuple):
    """How many features there are, their mean, and their unbiased covariance, in float64."""

    n: int
    mean: Float[np.ndarray, " D"]
    covariance: Float[np.ndarray, "D D"]


def checked(features: ArrayLike, least: int = 2, name: str = "features") -> Features:
    """As float64 [n, D]: finite, and at least `least` rows."""
    x = np.asarray(features, np.float64)
    if x.ndim != 2 or not x.shape[1]:
        raise UserError(
            f"{name} have shape {x.shape}, expected [n, D]: one row for each sample. "
            "Extract features from images first, or flatten each sample to a row."
        )
    if len(x) < least:
        raise UserError(f"{name} have {len(x)} rows, expected at least {least}; use more samples.")
    broken = int(np.sum(~np.isfinite(x).all(axis=1)))
    if broken:
        raise UserError(
            f"{broken} of {len(x)} {name} hold NaN or infinite numbers, expected finite ones. Look at "
            "the samples they were made from: a model that diverged must be trained again, with a "
            "smaller learning rate."
        )
    return x


def alike(a: int, b: int) -> None:
    """Refuse features of different extractors."""
    if a != b:
        raise UserError(
            f"the two sets have {a} and {b} features per sample; they can only be compared when both "
            "come from the same extractor. Compute one of them again."
        )


def checked_pair(
    a: ArrayLike, b: ArrayLike, least: int = 2, names: tuple[str, str] = ("features", "features")
) -> tuple[Features, Features]:
    """Return two sets of features [n, D] and [m, D] of one extractor, each as `checked` does."""
    x, y = checked(a, least, names[0]), checked(b, least, names[1])
    alike(x.shape[1], y.shape[1])
    return x, y


def statistics(features: ArrayLike) -> Statistics:
    """Mean and covariance of features [n, D]."""
    x = checked(features)
    mean = x.mean(axis=0)
    centred = x - mean
    return Statistics(len(x), mean, centred.T @ centred / (len(x) - 1))


def factor(a: Statistics) -> Float[np.ndarray, "D r"]:
    r"""Some $H$ with $HH^\top = A$, no wider than the rank of $A$."""
    if a.n > len(a.mean):
        try:
            return np.linalg.cholesky(a.covariance)
        except np.linalg.LinAlgError:
            pass  # constant or repeated features: singular however many samples there are
    eigenvalues, vectors = linalg.eigh(a.covariance, check_finite=False)
    kept = eigenvalues > len(eigenvalues) * np.finfo(float).eps * max(eigenvalues[-1], 0)
    return vectors[:, kept] * np.sqrt(eigenvalues[kept])


def distance_to(root: Float[np.ndarray, "D r"], a: Statistics, b: Statistics) -> float:
    r"""$d^2(a, b)$ when the factor `root` of $A$ is known."""
    inner = root.T @ b.covariance @ root
    eigenvalues = linalg.eigh(inner, eigvals_only=True, driver="evd", check_finite=False)
    overlap = np.sqrt(np.maximum(eigenvalues, 0)).sum()
    gap = a.mean - b.mean
    return float(gap @ gap + np.trace(a.covariance) + np.trace(b.covariance) - 2 * overlap)


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """The squared Frechet distance (what is called FID when the features are Inception's)."""
    alike(len(a.mean), len(b.mean))
    if not all(np.isfinite(part).all() for part in (*a[1:], *b[1:])):
        raise UserError(
            "the statistics hold NaN or infinite numbers, expected finite ones; compute them "
            "again from finite features."
        )
    if b.n < a.n:
        a, b = b, a
    return max(distance_to(factor(a), a, b), 0.0)
