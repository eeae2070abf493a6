r"""Maximum likelihood in one-dimensional exponential families, many at once, in double precision.

$$p_q(x) = e^{c_q\cdot\phi(x)}\,\mu(x)/Z(c_q),\qquad
\ell_q(c) = c\cdot t_q - \log Z(c) - \tfrac12\,c^\top R\,c$$

with $t_q$ the mean of $\phi$ over samples: all that is ever needed of them. $\ell_q$ is concave, its
gradient is $t_q - \mathbb{E}_c[\phi] - Rc$ and its Hessian $-\mathrm{Cov}_c(\phi) - R$, all by
quadrature, so that Newton's method with a line search finds the one maximum. The penalty $R$
settles what the samples leave open.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

_STEPS = 100
_TOLERANCE = 1e-10  # of Newton's decrement: about twice what the likelihood, in nats, still lacks
_HALVINGS = 30


def maximise(
    statistics: Float[np.ndarray, "Q B"],
    features: Float[np.ndarray, "N B"],
    log_measure: Float[np.ndarray, " N"],
    penalty: Float[np.ndarray, "B B"],
    start: Float[np.ndarray, "Q B"] | None = None,
    steps: int = _STEPS,
) -> Float[np.ndarray, "Q B"]:
    r"""Return the coefficients [Q, B] of Q densities that maximise $\ell_q$, from `start` or zero.

    **Arguments:** `statistics` are $t_q$; `features` are $\phi$ on N nodes; `log_measure` is $\log\mu$
    times the nodes' weights; `penalty` is $R$; `steps` limits Newton's iterations.
    """
    c = np.zeros(statistics.shape) if start is None else np.array(start, np.float64)

    def log_density(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tilted = c @ features.T + log_measure
        return tilted, logsumexp(tilted, axis=1)

    def value(c: np.ndarray, rows: np.ndarray) -> np.ndarray:
        fit = np.sum(c * (statistics[rows] - 0.5 * c @ penalty), axis=1)
        return fit - log_density(c)[1]

    active = np.arange(len(c))
    for _ in range(steps):
        tilted, log_z = log_density(c[active])
        mass = np.exp(tilted - log_z[:, None])
        mean = mass @ features
        gradient = statistics[active] - mean - c[active] @ penalty
        second = (mass[:, None, :] * features.T) @ features
        curvature = second - mean[:, :, None] * mean[:, None, :] + penalty
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        decrement = np.sum(gradient * step, axis=1)
        going = decrement > _TOLERANCE
        active, step, decrement = active[going], step[going], decrement[going]
        if not len(active):
            break
        c[active] += _searched(value, c[active], active, step, decrement)[:, None] * step
    return c


def _searched(
    value: Callable[[np.ndarray, np.ndarray], np.ndarray],
    c: np.ndarray,
    rows: np.ndarray,
    step: np.ndarray,
    decrement: np.ndarray,
) -> Float[np.ndarray, " Q"]:
    """Return how far along its step each density goes: halved until the likelihood has risen enough."""
    share, before = np.ones(len(c)), value(c, rows)
    for _ in range(_HALVINGS):
        risen = value(c + share[:, None] * step, rows) - before
        short = ~(risen >= 1e-4 * share * decrement)
        if not short.any():
            return share
        share[short] /= 2
    share[short] = 0
    return share


def simpson(cells: int) -> Float[np.ndarray, " 2*cells+1"]:
    """Return Simpson's weights on the knots and midpoints of `cells` cells of an interval of length 1."""
    weights = np.full(2 * cells + 1, 2.0)
    weights[1::2], weights[[0, -1]] = 4.0, 1.0
    return weights / (6 * cells)
