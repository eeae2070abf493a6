"""Learned densities as curves, and what their latents are called."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..priors import AbstractPrior

Place = tuple[int, ...]  # (q, p), or (q,) of a mixture
_POINTS = 2001  # of a density curve: fine enough to read values off it


def place_name(place: Place) -> str:
    """Return `q=3, p=1`, counted from one as in the paper."""
    return ", ".join(f"{name}={i + 1}" for name, i in zip("qp", place, strict=False))


def symbol(place: Place) -> str:
    """Return the latent's name in the paper, for an axis."""
    return f"$z_{{{','.join(str(i + 1) for i in place)}}}$"


def places_at(order: np.ndarray, shape: tuple[int, ...]) -> list[Place]:
    """Return the places of indices into the flattened latent."""
    return list(zip(*(axis.tolist() for axis in np.unravel_index(order, shape)), strict=True))


class Curve(NamedTuple):
    """A learned density and its reference on a grid."""

    place: Place
    z: np.ndarray
    density: np.ndarray
    reference: np.ndarray

    def at(self, z: Any) -> np.ndarray:
        """Return the density at z, off the drawn curve; zero outside the domain."""
        return np.interp(z, self.z, self.density, left=0.0, right=0.0)


def curves_at(prior: AbstractPrior, places: Sequence[Place], points: int = _POINTS) -> list[Curve]:
    """Return the densities of given latents, on a grid fine enough to read values off it."""
    nodes, values = prior.densities(points)
    z = np.asarray(nodes, np.float64)
    reference = np.exp(np.asarray(prior.pi_0.log_density(nodes), np.float64))
    reference = np.broadcast_to(reference, z.shape)
    reference = reference / np.trapezoid(reference, z, axis=1)[:, None]
    curves = []
    for place in places:
        if len(place) != len(prior.shape) or not (np.array(place) < prior.shape).all() or min(place) < 0:  # fmt: skip
            raise ValueError(
                f"a place is an index, counted from zero, into latents of shape {prior.shape}; "
                f"got {place}."
            )
        row = place[1] if len(place) == 2 else 0
        curves.append(Curve(place, z[row], np.asarray(values[place], np.float64), reference[row]))
    return curves
