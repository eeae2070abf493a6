"""Energies and their integrals in float64 NumPy and SciPy, sharing no code with the model.

What the tables are measured against, in `kaem bench exactness` and in the tests. A basis or reference
without a formula here is taken at its own word, in double precision: its integrals are then checked, and
its formula is not.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import integrate, interpolate, stats

from ..bases import RBF, AbstractBasis, BSpline, Chebyshev, Fourier, Functions, MexicanHat, Morlet
from ..priors import UnivariatePrior

Curve = Callable[[np.ndarray], np.ndarray]
# A formula takes a basis with its arrays in float64, q, p and points, and returns f_{q,p} there.
Formula = Callable[[Any, int, int, np.ndarray], np.ndarray]


def _rbf(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    grid = basis["grid"][p]
    width = np.gradient(grid) * np.exp(basis["log_tau"])
    bumps = np.exp(-(((z[..., None] - grid) / width) ** 2) / 2)
    return np.sum(basis["coefficients"][q, p] * bumps, axis=-1)


def _bspline(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    grid = basis["grid"][p]
    first, last = grid[1] - grid[0], grid[-1] - grid[-2]
    steps = np.arange(1, 7)  # three more knots than coefficients need: zero beyond
    knots = np.r_[grid[0] - first * steps[::-1], grid, grid[-1] + last * steps]
    padded = np.r_[np.zeros(3), basis["coefficients"][q, p], np.zeros(3)]
    return np.nan_to_num(interpolate.BSpline(knots, padded, 3, extrapolate=False)(z))


def _unit(basis: Any, p: int, z: np.ndarray) -> np.ndarray:
    grid = basis["grid"][p]
    return (z - grid[0]) / (grid[-1] - grid[0])


def _chebyshev(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    x = np.clip(2 * _unit(basis, p, z) - 1, -1, 1)
    return np.polynomial.chebyshev.chebval(x, basis["coefficients"][q, p])


def _fourier(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    c = basis["coefficients"][q, p]
    phase = np.pi * _unit(basis, p, z)[..., None] * np.arange(1, len(c) // 2 + 1)
    return np.concatenate([np.cos(phase), np.sin(phase)], axis=-1) @ c


def _scaled(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    return (z - basis["centre"][q, p]) / np.hypot(basis["raw_width"][q, p], basis["width_floor"])


def _morlet(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    x = _scaled(basis, q, p, z)
    return basis["weight"][q, p] * np.cos(basis["tau"] * x) * np.exp(-(x**2) / 2)


def _mexican_hat(basis: Any, q: int, p: int, z: np.ndarray) -> np.ndarray:
    x = basis["tau"] * _scaled(basis, q, p, z)
    scale = 2 / (np.sqrt(3) * np.pi**0.25)
    return basis["weight"][q, p] * scale * (1 - x**2) * np.exp(-(x**2) / 2)


ORACLES: dict[type[AbstractBasis], Formula] = {
    RBF: _rbf,
    BSpline: _bspline,
    Chebyshev: _chebyshev,
    Fourier: _fourier,
    Morlet: _morlet,
    MexicanHat: _mexican_hat,
}
ACTIVATION_ORACLES: dict[str, Curve] = {
    "relu": lambda v: np.maximum(v, 0),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "identity": lambda v: v,
}
REFERENCE_ORACLES: dict[str, Curve] = {
    "gaussian": stats.norm.logpdf,
    "lognormal": stats.lognorm(1).logpdf,
    "uniform": np.zeros_like,
    "none": np.zeros_like,
}


def _in_double(function: Callable[[Any, Any], Any], of: Any, z: np.ndarray) -> np.ndarray:
    """Return `function(of, z)`, point by point, in double precision, with the arrays of a module `of` cast to it."""
    # Few sizes, so that little is compiled.
    padded = np.ones(1 << max(12, (z.size - 1).bit_length()))
    padded[: z.size] = z.ravel()
    with jax.enable_x64(True):
        arrays, rest = eqx.partition(of, eqx.is_inexact_array)
        arrays = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), arrays)
        values = function(eqx.combine(arrays, rest), jnp.asarray(padded))
        return np.asarray(values)[: z.size].reshape(z.shape)


def independent(prior: UnivariatePrior) -> bool:
    """Whether the density of a prior has formulas here, which share no code with its own."""
    return type(prior.energies.basis) in ORACLES and prior.reference in REFERENCE_ORACLES


def energy(functions: Functions, q: int, p: int) -> Curve:
    """Return f_{q,p} in float64."""
    basis = functions.basis
    formula = ORACLES.get(type(basis))
    plain = {
        name: np.asarray(value, np.float64)
        for name, value in vars(basis).items()
        if isinstance(value, float) or hasattr(value, "shape")
    }

    def own_word(basis: AbstractBasis, z: Any) -> Any:
        return basis.curves(jnp.broadcast_to(z, (basis.shape[1], z.size)))[q, p]

    def curve(z: np.ndarray) -> np.ndarray:
        y = formula(plain, q, p, z) if formula else _in_double(own_word, basis, z)
        if functions.base_weight is not None:
            activation = ACTIVATION_ORACLES[str(functions.activation)]
            y = y + float(functions.base_weight[q, p]) * activation(z)
        return y

    return curve


def log_density(prior: UnivariatePrior, q: int = 0, p: int = 0) -> Curve:
    """Return the unnormalised f + log pi_0 of one coordinate, in float64."""
    f = energy(prior.energies, q, p)

    def own_word(z: np.ndarray) -> np.ndarray:
        return _in_double(lambda pi_0, z: pi_0.log_density(z), prior.pi_0, z)

    pi_0 = REFERENCE_ORACLES.get(prior.reference, own_word)
    return lambda z: f(z) + pi_0(z)


def cdf(curve: Curve, points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return F at sorted `points`, whose ends are the domain's, and log Z, by adaptive quadrature.

    Tanh-sinh quadrature on every interval, cut at zero too: a ReLU branch has its kink there.
    """
    inner = np.linspace(points[0], points[-1], 65)
    edges = np.unique(np.concatenate([points, inner, [0.0] if points[0] < 0 < points[-1] else []]))
    top = float(np.max(curve(np.linspace(points[0], points[-1], 8193)[1:])))
    result = integrate.tanhsinh(
        lambda z: np.exp(curve(z) - top), edges[:-1], edges[1:], atol=1e-14, rtol=1e-12
    )
    cumulative = np.concatenate([[0.0], np.cumsum(result.integral)])
    at_points = cumulative[np.searchsorted(edges, points)]
    return at_points / cumulative[-1], top + float(np.log(cumulative[-1]))
