r"""Paths between two latents, and what they decode to (Fig. slerp).

Spherical interpolation turns one latent into the other, with $\omega$ the angle between them:
$$z(t) = \frac{\sin((1-t)\,\omega)}{\sin\omega}\,z_A + \frac{\sin(t\,\omega)}{\sin\omega}\,z_B.$$
It knows nothing of the prior, and may leave its domain. The quantile path is a straight line in
$u = F(z)$, coordinate by coordinate:
$$z(t) = F^{-1}\big((1-t)\,F(z_A) + t\,F(z_B)\big).$$
It stays in the support, passes through equal probabilities in equal steps, and moves every
coordinate in one direction.
"""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..model import AbstractModel
from .curves import Curve, Place, curves_at, symbol
from .figures import BLUE, GREY, ORANGE, new_figure, save_figure
from .influence import Influence, readable
from .traversal import density_window, show_images

_PANELS = 3  # densities below the images, as in the paper
_PARALLEL = 1e-3  # of sin(omega): below it, the chord and the arc agree to 1e-6
_PROMINENCE = 0.02  # of the peak: smaller bumps of a density are not modes


class LatentPath(NamedTuple):
    """Latents from A to B, what they decode to, and how probable they are."""

    name: str
    z: np.ndarray  # [points, ...]
    images: np.ndarray  # [points, H, W, C]
    log_prob: np.ndarray  # -inf outside the domain

    def at(self, place: Place) -> np.ndarray:
        """One coordinate along the path."""
        return np.array([z[place] for z in self.z])


class Interpolation(NamedTuple):
    """Both paths, and the densities of the latents that change the output most between the ends."""

    slerp: LatentPath
    quantile: LatentPath
    curves: list[Curve]


def slerp(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Spherical interpolation at the times `t`; a straight line where the angle defines no arc.

    That is the case for parallel, opposite and zero vectors.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    t = np.asarray(t, np.float64).reshape(-1, *(1 for _ in a.shape))
    length = np.linalg.norm(a) * np.linalg.norm(b)
    omega = np.arccos(np.clip(np.sum(a * b) / length, -1, 1)) if length > 0 else 0.0
    if np.sin(omega) < _PARALLEL:
        return (1 - t) * a + t * b
    return (np.sin((1 - t) * omega) * a + np.sin(t * omega) * b) / np.sin(omega)


def interpolation(
    model: AbstractModel,
    z_a: Float[Array | np.ndarray, "..."],
    z_b: Float[Array | np.ndarray, "..."],
    points: int = 9,
    influence: Influence | None = None,
) -> Interpolation:
    r"""Both paths with `points` latents each, ends included.

    The densities are up to three with the largest influence times $|u_A - u_B|$; without
    `influence`, those with the largest $|u_A - u_B|$.
    """
    kaem = readable(model, "interpolation", images=True)
    prior = kaem.prior
    a, b = np.asarray(z_a, np.float32), np.asarray(z_b, np.float32)
    if a.shape != prior.shape or b.shape != prior.shape or points < 2:
        raise ValueError(
            f"interpolation needs two latents of shape {prior.shape} and at least 2 points, got "
            f"shapes {a.shape} and {b.shape}, and {points} points."
        )
    t = np.linspace(0, 1, points)
    u_a, u_b = (np.asarray(prior.cdf(jnp.asarray(z)), np.float64) for z in (a, b))
    steps = t.reshape(-1, *(1 for _ in a.shape))
    line = prior.inverse_cdf(jnp.asarray((1 - steps) * u_a + steps * u_b, jnp.float32))
    # Where a density is all but zero F^-1(F(z)) is not z in float32; the ends are the latents given.
    quantile = np.clip(np.asarray(line), np.minimum(a, b), np.maximum(a, b))
    quantile[0], quantile[-1] = a, b

    def path(name: str, z: np.ndarray) -> LatentPath:
        latents = jnp.asarray(z, jnp.float32)
        images = np.asarray(kaem.decode(latents), np.float64)
        return LatentPath(name, np.asarray(z), images, np.asarray(prior.log_prob(latents)))

    moved = np.abs(u_a - u_b)
    if influence is not None:
        moved = moved * np.where(np.isnan(influence.sweep), 0, influence.sweep)
    order = np.argsort(-moved, axis=None, kind="stable")[: np.clip((moved > 0).sum(), 1, _PANELS)]
    places = [tuple(int(i) for i in np.unravel_index(j, prior.shape)) for j in order]
    return Interpolation(
        path("slerp", slerp(a, b, t)),
        path("quantile", quantile),
        curves_at(prior, places),
    )


def sample_pair(model: AbstractModel, key: PRNGKeyArray) -> tuple[np.ndarray, np.ndarray]:
    """Two draws of the prior."""
    a, b = np.asarray(readable(model, "interpolation").prior.sample(key, 2))
    return a, b


def mode_pair(model: AbstractModel) -> tuple[np.ndarray, np.ndarray]:
    """Ends of high and of low density: A has every coordinate at its mode.

    B has each at the lowest of its other local maxima or, if it has none, at its 2.5 % or 97.5 %
    quantile, whichever is less dense. An end of the domain can be a maximum.
    """
    from scipy.signal import find_peaks

    prior = readable(model, "interpolation").prior
    places: list[Place] = list(np.ndindex(prior.shape))
    ends = np.asarray(prior.inverse_cdf(jnp.stack([jnp.full(prior.shape, u) for u in (0.025, 0.975)])))  # fmt: skip
    z_a, z_b = np.empty(prior.shape, np.float32), np.empty(prior.shape, np.float32)
    for curve in curves_at(prior, places):
        density, peak = curve.density, int(np.argmax(curve.density))
        padded = np.concatenate([[0.0], density, [0.0]])
        peaks, tops = find_peaks(padded, prominence=_PROMINENCE * density[peak], plateau_size=1)
        others = peaks[(tops["left_edges"] > peak + 1) | (tops["right_edges"] < peak + 1)] - 1
        tails = np.array([end[curve.place] for end in ends])
        z_a[curve.place] = curve.z[peak]
        if len(others):
            z_b[curve.place] = curve.z[others[np.argmin(density[others])]]
        else:
            z_b[curve.place] = tails[np.argmin(curve.at(tails))]
    return z_a, z_b


def draw_interpolation(
    found: Interpolation, path: Path, ends: str = "two samples of the prior"
) -> None:
    """Decoded paths, their log-densities, and the ends on three densities; `ends` says what A and B are."""
    paths = ((found.slerp, BLUE, "o"), (found.quantile, ORANGE, "s"))
    points = len(found.slerp.z)
    height, width = found.slerp.images.shape[1:3]
    strip = 6.1 / points * height / width
    figure, axes = new_figure(
        7.0, 2 * strip + 4.0, 4, len(found.curves),
        gridspec_kw={"height_ratios": [strip, strip, 0.95, 1.15]},
    )  # fmt: skip
    for row in axes[:3]:
        for axis in row[1:]:
            axis.remove()
    grid = axes[0, 0].get_gridspec()
    wide = [figure.add_subplot(grid[i, :]) for i in range(3)]
    for axis in axes[:3, 0]:
        axis.remove()

    for axis, (one, colour, marker) in zip(wide, paths, strict=False):
        show_images(axis, one.images)
        axis.set_ylabel(one.name, fontsize=8)
        outside = np.isneginf(one.log_prob)
        line = np.where(outside, np.nan, one.log_prob)
        wide[2].plot(range(points), line, marker, ls="-", ms=4, lw=1, color=colour, label=one.name)
        if outside.any():
            # At the foot of the panel, in its own coordinates: these have no height.
            wide[2].plot(
                np.flatnonzero(outside), np.full(outside.sum(), 0.06), "x", ms=5, color=colour,
                transform=wide[2].get_xaxis_transform(), clip_on=False,
                label=f"{one.name}: outside the domain, p(z) = 0",
            )  # fmt: skip
    wide[0].set_title(f"From A (left) to B (right): {ends}", fontsize=9)
    wide[2].set_xlim(-0.5, points - 0.5)
    wide[2].set_xticks(range(points), [f"{t:.3g}" for t in np.linspace(0, 1, points)])
    wide[2].set_xlabel("time t along the path", fontsize=8, labelpad=1)
    wide[2].set_ylabel("log p(z), nats", fontsize=8)
    wide[2].grid(alpha=0.25, lw=0.5)
    wide[2].legend(fontsize=7, frameon=False)
    wide[2].tick_params(labelsize=7)

    for axis, curve in zip(axes[3], found.curves, strict=True):
        axis.fill_between(curve.z, curve.density, color=GREY, alpha=0.18, lw=0)
        (learned,) = axis.plot(curve.z, curve.density, color=GREY, lw=1.2)
        top = curve.density.max()
        for (one, colour, marker), level in zip(paths, (0.09, 0.2), strict=True):
            axis.plot(one.at(curve.place), [level * top] * points, marker, ms=2.5, color=colour)
        start, *_, stop = found.slerp.at(curve.place)
        solid = axis.axvline(start, color="black", lw=1.2)
        dashed = axis.axvline(stop, color="black", lw=1.2, ls="--")
        axis.set_xlim(*density_window(curve, *(one.at(curve.place) for one, _, _ in paths)))
        axis.set_ylim(0, 1.08 * top)
        axis.set_xlabel(symbol(curve.place), fontsize=8, labelpad=1)
        axis.tick_params(labelsize=7)
    axes[3, 0].set_ylabel("density", fontsize=8)
    figure.legend(
        [learned, solid, dashed],
        ["learned density", "$z_A$", "$z_B$"],
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path)
