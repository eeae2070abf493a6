r"""Independent component analysis by maximum likelihood, with densities that adapt to the sources.

Of whitened data $x$, $\mathrm{Cov}\,x = I$, only a rotation is left to find: $y = W x$, $W W^\top = I$, that maximises

$$L(W) = \sum_q \max_{p_q}\; \tfrac1n\sum_i \log p_q(y_{iq})$$

over splines $\log p_q$, the prior's own kind of density: sub- and super-Gaussian, skewed and bimodal sources
alike. Two steps alternate, and each raises $L$. (a) The densities, by Newton's method. (b) The rotation,
$W \leftarrow e^{tE} W$. With scores $\psi_q = (\log p_q)'$, $S = \mathbb{E}[\psi(y)\,y^\top]$ and $I_q = \mathbb{E}[\psi_q^2]$, the slope in the angle of a
pair is $S_{ij} - S_{ji}$ and, for independent sources of unit variance, the curvature $-(I_i + I_j - 2)$; L-BFGS on top of
that, as in Picard-O (Ablin, Cardoso and Gramfort, 2018), sees to sources that are not. $t$ is halved
until the likelihood rises. It starts from a few steps of FastICA or from whitening alone, whichever
is likelier. Nothing is random.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import expm

from ._adaptive import Densities, Family, Places

_FLATTEST = 0.05  # curvature of the likelihood, below which two sources count as nearly Gaussian
_KEPT = 10  # turns that L-BFGS remembers
_TURN = 0.5  # radians in one step
_HALVINGS = 12
Matrix = Float[np.ndarray, "Q Q"]
Data = Float[np.ndarray, "Q n"]


def rotation(x: Data, *, steps: int = 100, tolerance: float = 1e-5) -> tuple[Matrix, list[float]]:
    """Return the rotation W of whitened x whose W x are most independent, and the likelihoods on the way.

    These are means over sources, in nats and less a small penalty, and never fall; `tolerance` is
    the gain that ends the search, `steps` the most that are made.
    """
    x, family = np.asarray(x, np.float32), Family()
    starts = []
    for w in (np.eye(len(x)), _fast_ica(x)):
        weights = Places.of(_rotated(w, x)).binned()
        densities = family.fit(weights)
        starts.append((densities.value(weights), w, densities))
    value, w, densities = max(starts, key=lambda start: start[0])
    y, history, memory = _rotated(w, x), [value], _Memory()
    places = Places.of(y)
    for _ in range(steps):
        slope, curvature = _slopes(y, places.at(densities.score))
        found = _searched(w, x, memory.direction(slope, curvature), densities, history[-1])
        if found is None:
            break
        turn, w, y, places = found
        memory.last = turn, slope
        weights = places.binned()
        densities = family.fit(weights, densities)
        history.append(densities.value(weights))
        if history[-1] - history[-2] < tolerance:
            break
    return w, history


def _rotated(w: Matrix, x: Data) -> Data:
    return w.astype(np.float32) @ x


def _slopes(y: Data, score: Data) -> tuple[Matrix, Matrix]:
    """Return the slope of the likelihood in each pair's angle, and its curvature if all are independent."""
    cross = (score @ y.T).astype(np.float64) / y.shape[1]
    information = np.asarray(np.mean(score**2, axis=1, dtype=np.float64))
    return cross - cross.T, np.maximum(information[:, None] + information - 2, _FLATTEST)


def _searched(
    w: Matrix, x: Data, turn: Matrix, densities: Densities, before: float
) -> tuple[Matrix, Matrix, Data, Places] | None:
    """Return how much of a turn makes a likelier rotation under fixed densities, that, and its sources."""
    for _ in range(_HALVINGS):
        moved = expm(turn) @ w
        y = _rotated(moved, x)
        places = Places.of(y)
        if densities.value(places.binned()) > before:
            return turn, moved, y, places
        turn = turn / 2
    return None


class _Memory:
    """The last turns and how they changed the slope: the inverse Hessian of L-BFGS."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Matrix, Matrix]] = []  # turns, and what the slope lost by them
        self.last: tuple[Matrix, Matrix] | None = None  # turn, and the slope before it

    def direction(self, slope: Matrix, curvature: Matrix) -> Matrix:
        """Return where to turn: the inverse Hessian times the slope, by the two-loop recursion."""
        if self.last is not None:
            turn, lost = self.last[0], self.last[1] - slope
            if np.sum(turn * lost) > 0:
                self.pairs = [*self.pairs[1 - _KEPT :], (turn, lost)]
        left, shares = slope, []
        for turn, lost in reversed(self.pairs):
            shares.append(np.sum(turn * left) / np.sum(turn * lost))
            left = left - shares[-1] * lost
        found = left / curvature
        for (turn, lost), share in zip(self.pairs, reversed(shares), strict=True):
            found = found + (share - np.sum(lost * found) / np.sum(turn * lost)) * turn
        if np.sum(found * slope) <= 0:
            self.pairs, found = [], slope / curvature
        return np.clip(found, -_TURN, _TURN)


def _fast_ica(x: Data, steps: int = 30) -> Matrix:
    """Return the rotation after symmetric fixed-point steps with tanh, from the identity."""
    w = np.eye(len(x))
    for _ in range(steps):
        g = np.tanh(_rotated(w, x))
        update = (g @ x.T) / x.shape[1] - np.mean(1 - g**2, axis=1)[:, None] * w
        left, _, right = np.linalg.svd(update.astype(np.float64))
        moved = left @ right
        settled = np.min(np.abs(np.sum(moved * w, axis=1))) > 1 - 1e-5
        w = moved
        if settled:
            break
    return w
