"""Energies and their integrals in float64 NumPy and SciPy, sharing no code with the model.

What the tables are measured against, in `kaem bench exactness` and in the tests.
"""

from collections.abc import Callable

import numpy as np
from scipy import integrate, interpolate, stats

from ..bases import RBF, BSpline, Chebyshev, Fourier, Functions, MexicanHat, Morlet
from ..priors import UnivariatePrior

Curve = Callable[[np.ndarray], np.ndarray]


def energy(functions: Functions, q: int, p: int) -> Curve:
    """f_{q,p} in float64."""
    basis = functions.basis
    plain = {
        name: np.asarray(value, np.float64)
        for name, value in vars(basis).items()
        if hasattr(value, "shape")
    }

    def wavelet(z: np.ndarray) -> np.ndarray:
        width = np.hypot(plain["raw_width"][q, p], basis.width_floor)  # type: ignore[attr-defined]
        x = (z - plain["centre"][q, p]) / width
        if isinstance(basis, Morlet):
            shape = np.cos(plain["tau"] * x) * np.exp(-(x**2) / 2)
        else:
            x = plain["tau"] * x
            shape = 2 / (np.sqrt(3) * np.pi**0.25) * (1 - x**2) * np.exp(-(x**2) / 2)
        return plain["weight"][q, p] * shape

    def linear(z: np.ndarray) -> np.ndarray:
        grid, c = plain["grid"][p], plain["coefficients"][q, p]
        unit = (z - grid[0]) / (grid[-1] - grid[0])
        if isinstance(basis, RBF):
            width = np.gradient(grid) * np.exp(plain["log_tau"])
            return np.sum(c * np.exp(-(((z[..., None] - grid) / width) ** 2) / 2), axis=-1)
        if isinstance(basis, BSpline):
            first, last = grid[1] - grid[0], grid[-1] - grid[-2]
            steps = np.arange(1, 7)  # three more knots than coefficients need: zero beyond
            knots = np.r_[grid[0] - first * steps[::-1], grid, grid[-1] + last * steps]
            padded = np.r_[np.zeros(3), c, np.zeros(3)]
            return np.nan_to_num(interpolate.BSpline(knots, padded, 3, extrapolate=False)(z))
        if isinstance(basis, Chebyshev):
            return np.polynomial.chebyshev.chebval(np.clip(2 * unit - 1, -1, 1), c)
        assert isinstance(basis, Fourier)
        phase = np.pi * unit[..., None] * np.arange(1, len(c) // 2 + 1)
        return np.concatenate([np.cos(phase), np.sin(phase)], axis=-1) @ c

    def curve(z: np.ndarray) -> np.ndarray:
        y = wavelet(z) if isinstance(basis, Morlet | MexicanHat) else linear(z)
        if functions.base_weight is not None:
            activations: dict[str, Curve] = {
                "relu": lambda v: np.maximum(v, 0),
                "silu": lambda v: v / (1 + np.exp(-v)),
                "tanh": np.tanh,
                "identity": lambda v: v,
            }
            y = y + float(functions.base_weight[q, p]) * activations[str(functions.activation)](z)
        return y

    return curve


def log_density(prior: UnivariatePrior, q: int = 0, p: int = 0) -> Curve:
    """The unnormalised f + log pi_0 of one coordinate, in float64."""
    f = energy(prior.energies, q, p)
    pi_0 = {
        "gaussian": stats.norm.logpdf,
        "lognormal": stats.lognorm(1).logpdf,
        "uniform": np.zeros_like,
        "none": np.zeros_like,
    }[prior.reference]
    return lambda z: f(z) + pi_0(z)


def cdf(curve: Curve, points: np.ndarray) -> tuple[np.ndarray, float]:
    """F at sorted `points`, whose ends are the domain's, and log Z, by adaptive quadrature.

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
