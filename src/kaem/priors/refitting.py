r"""Refitting: the energies of a prior that maximise the likelihood of given samples, all at once.

Energies that are linear in their coefficients, one for each density, make an exponential family:
$\log p(s) = c\cdot\phi(s) + \log\pi_0(s) - \log Z(c)$ is concave in $c$, depends on the samples only by
the means of $\phi$, and is maximised by Newton's method with $Z$ by Simpson's rule on the nodes of
the prior's tables. A ridge of $\lambda/2\,|c|^2$ settles coefficients that no sample touches: there
the likelihood alone would send them to minus infinity. What shapes the basis itself, a grid or the
width of its bumps, stays.

Other energies (wavelets, mixtures) are improved from where they are by L-BFGS, with a ridge on how
far they move: nothing else stops a wavelet that helps little from growing as wide as the domain,
where its normaliser is a small difference of large numbers. A one-dimensional
density sees of its samples hardly more than a fine histogram, so that log-densities are evaluated
on the nodes of the tables and not on samples: linear interpolation between nodes $h$ apart changes
a mean log-density by $h^2/8$ of its curvature.
"""

from math import prod
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.optimize import minimize

from ..bases import ACTIVATIONS, Functions, LinearBasis, features_on
from ..initialise import as_array
from ._prior import AbstractPrior
from .exponential import maximise, simpson

Prior = TypeVar("Prior", bound=AbstractPrior)
_OUTSIDE = 0.01  # of all samples of a coordinate, that may be outside its domain
_AT_ONCE = 2**22  # features of samples that are held in memory
_GAIN = 1e-7  # of the log-likelihood, relative, below which L-BFGS stops


def refit(
    prior: Prior,
    s: Float[Array | np.ndarray, "n ..."],
    *,
    ridge: float | None = None,
    steps: int = 60,
) -> Prior:
    r"""Return the prior, without cached tables, with energies that maximise the likelihood of samples.

    **Arguments:** `s` are samples [n, *shape]. Those beyond the domain count as if at its end; more than
    1 % of any coordinate raise ValueError. `ridge` is $\lambda$, by default 1e-6 for coefficients and 1e-4
    for what only L-BFGS improves; `steps` is the most iterations that are made.
    """
    clipped = _within(prior, np.asarray(s, np.float32))
    prior = prior.uncache()
    if _is_linear(prior):
        return _newton(prior, clipped, 1e-6 if ridge is None else ridge, steps)
    return _ascended(prior, clipped, 1e-4 if ridge is None else ridge, steps)


def _within(prior: AbstractPrior, s: np.ndarray) -> Float[np.ndarray, "n ..."]:
    """Return samples clipped to the domain, or say what is wrong with them."""
    if s.shape[1:] != prior.shape or len(s) == 0:
        raise ValueError(
            f"samples to fit a prior of shape {prior.shape} to must be [n, *shape] with n >= 1, got "
            f"{s.shape}."
        )
    if not np.isfinite(s).all():
        raise ValueError("some samples are NaN or infinite; remove them before fitting a prior.")
    lo, hi = (np.asarray(bound) for bound in prior.bounds)
    share = np.mean((s < lo) | (s > hi), axis=0)
    if share.max() > _OUTSIDE:
        worst = np.unravel_index(np.argmax(share), share.shape)
        raise ValueError(
            f"{share.max():.1%} of the samples of coordinate {', '.join(map(str, worst))} are outside "
            f"the prior's domain [{lo[worst]:.4g}, {hi[worst]:.4g}], where at most {_OUTSIDE:.0%} may "
            "be; scale the samples, or give a prior with a wider domain."
        )
    return np.clip(s, lo, hi)


def _is_linear(prior: AbstractPrior) -> bool:
    """Whether each density has one energy, linear in its coefficients."""
    single = len(prior.shape) == 2 or prior.energies.shape[1] == 1
    # Closed forms have no basis; among bases, only this class promises what Newton's method needs.
    return single and isinstance(getattr(prior.energies, "basis", None), LinearBasis)


def _newton(prior: Prior, s: np.ndarray, ridge: float, steps: int) -> Prior:
    energies = prior.energies
    inputs = energies.shape[1]
    samples = np.moveaxis(s.reshape(len(s), -1, inputs), 0, -1)  # [Q, P, n]
    means = _feature_means(energies, samples)
    nodes = _nodes(prior)
    features = _with_activation(energies, features_on(energies.basis, nodes), nodes)
    width = (nodes[:, -1] - nodes[:, 0])[:, None]
    log_measure = np.asarray(prior.pi_0.log_density(as_array(nodes)), np.float64)
    log_measure = log_measure + np.log(simpson(prior.cells) * width)
    penalty = ridge * np.eye(features.shape[-1])
    fitted = [
        maximise(means[:, p], features[p], log_measure[p], penalty, steps=steps)
        for p in range(inputs)
    ]
    c = np.stack(fitted, axis=1)  # [Q, P, B], and the weight of the activation last
    if energies.base_weight is not None:
        prior = eqx.tree_at(lambda p: p.energies.base_weight, prior, as_array(c[..., -1]))
        c = c[..., :-1]
    return eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, as_array(c))


def _nodes(prior: AbstractPrior) -> Float[np.ndarray, "R N"]:
    """Return the knots and midpoints of the prior's tables."""
    return np.asarray(prior._nodes(2 * prior.cells + 1), np.float64)


def _with_activation(
    energies: Functions, features: Float[np.ndarray, "... B"], x: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "... B"]:
    """Return features with the activation's as the last, where energies have such a branch."""
    if energies.base_weight is None or energies.activation is None:
        return features
    active = np.asarray(ACTIVATIONS[energies.activation](as_array(x)), np.float64)
    return np.concatenate([features, active[..., None]], axis=-1)


def _feature_means(
    energies: Any, samples: Float[np.ndarray, "Q P n"]
) -> Float[np.ndarray, "Q P B"]:
    """Return the mean features of samples, a few samples at a time, summed in double precision."""
    q, p, number = samples.shape
    size = max(1, min(number, _AT_ONCE // (q * energies.basis.coefficients[0].size)))
    total: Any = 0.0
    for start in range(0, number, size):
        chunk = samples[..., start : start + size]
        left = size - chunk.shape[-1]  # a last chunk of full size compiles nothing new
        padded = np.pad(chunk, ((0, 0), (0, 0), (0, left)), mode="edge")
        features = features_on(energies.basis, padded.swapaxes(0, 1).reshape(p, -1))
        rows = features.reshape(p, q, size, -1)[:, :, : chunk.shape[-1]]
        extended = _with_activation(energies, rows, chunk.swapaxes(0, 1))
        total = total + extended.sum(axis=2).swapaxes(0, 1)
    return total / number


def _ascended(prior: Prior, s: np.ndarray, ridge: float, steps: int) -> Prior:
    nodes = _nodes(prior).T  # [N, R]
    weights = _histogram(s, nodes)
    log_measure = np.log(simpson(prior.cells)[:, None] * (nodes[-1] - nodes[0]))
    parameters, rest = eqx.partition(prior, _is_own)
    start, unravel = ravel_pytree(parameters)
    binned = tuple(map(as_array, (nodes, weights, log_measure)))

    @jax.jit
    @jax.value_and_grad
    def loss(flat: Array) -> Float[Array, ""]:
        size = 0.5 * ridge / prod(prior.shape) * jnp.sum((flat - start) ** 2)
        return size - _binned(eqx.combine(unravel(flat), rest), *binned)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(as_array(flat))
        # A step too far may overflow: a large number makes the line search come back.
        finite = bool(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)))
        return (float(value) if finite else 1e30), np.nan_to_num(np.asarray(gradient, np.float64))

    options = {"maxiter": steps, "maxcor": 20, "ftol": _GAIN, "gtol": 1e-6}
    found = minimize(evaluate, np.asarray(start), jac=True, method="L-BFGS-B", options=options)
    return eqx.combine(unravel(as_array(found.x)), rest)


def _is_own(leaf: Any) -> bool:
    """Whether a leaf has parameters of each density: what all share, such as wavelets' tau, stays."""
    return eqx.is_inexact_array(leaf) and leaf.ndim > 0


def _binned(prior: AbstractPrior, nodes: Array, weights: Array, log_measure: Array) -> Array:
    """Return the mean log-density, over densities too, of samples binned on nodes [N, R].

    Quadratures miss what is too sharp for them, and an optimiser finds out. So a density is divided
    by its integral over the nodes, whose distance from 1 costs as well.
    """
    log_p = jax.vmap(prior._log_prob)(
        jnp.broadcast_to(nodes if len(prior.shape) == 1 else nodes[:, None], weights.shape)
    )
    measure = log_measure if len(prior.shape) == 1 else log_measure[:, None]
    log_mass = jax.nn.logsumexp(log_p + measure, axis=0)
    return jnp.mean(jnp.sum(weights * log_p, axis=0) - log_mass - log_mass**2)


def _histogram(s: np.ndarray, nodes: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "N ..."]:
    """Return each coordinate's weights on the nodes by linear binning."""
    lo, hi = nodes[0], nodes[-1]
    cells = len(nodes) - 1
    position = ((s - lo) * (cells / (hi - lo))).reshape(len(s), -1)
    k = np.clip(position.astype(np.int64), 0, cells - 1)
    right, rows = position - k, np.arange(position.shape[1])
    size = (len(nodes), position.shape[1])
    counts = np.zeros(size[0] * size[1])
    for place, share in ((k, 1 - right), (k + 1, right)):
        counts += np.bincount((place * size[1] + rows).ravel(), share.ravel(), len(counts))
    return (counts / len(s)).reshape(len(nodes), *s.shape[1:])
