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

from ...data.checks import checked_finite
from ...drawing import BLUE, GREY, ORANGE, new_figure, save_figure
from ...errors import UserError
from ...models import AbstractModel
from ..curves import Curve, Place, curves_at, places_at, symbol
from ..gallery import Gallery
from ..influence import Influence
from ..panels import annotate, density_window, legend_below, show_images
from ._figure import PRIOR, Figure

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
        """Return one coordinate along the path."""
        return np.array([z[place] for z in self.z])


class Interpolation(NamedTuple):
    """Both paths, and the densities of the latents that change the output most between the ends."""

    slerp: LatentPath
    quantile: LatentPath
    curves: list[Curve]


def slerp(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Interpolate on the sphere at the times `t`; a straight line where the angle defines no arc.

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
    r"""Return both paths with `points` latents each, ends included.

    The densities are up to three with the largest influence times $|u_A - u_B|$; without
    `influence`, those with the largest $|u_A - u_B|$.
    """
    kaem = model.readable("interpolation", images=True)
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
        images = checked_finite(kaem.decode(latents)).astype(np.float64)
        return LatentPath(name, np.asarray(z), images, np.asarray(prior.log_prob(latents)))

    moved = np.abs(u_a - u_b)
    if influence is not None:
        moved = moved * np.where(np.isnan(influence.sweep), 0, influence.sweep)
    order = np.argsort(-moved, axis=None, kind="stable")[: np.clip((moved > 0).sum(), 1, _PANELS)]
    curves = curves_at(prior, places_at(order, prior.shape))
    return Interpolation(path("slerp", slerp(a, b, t)), path("quantile", quantile), curves)


def sample_pair(model: AbstractModel, key: PRNGKeyArray) -> tuple[np.ndarray, np.ndarray]:
    """Return two draws of the prior."""
    a, b = np.asarray(model.readable("interpolation").prior.sample(key, 2))
    return a, b


def mode_pair(model: AbstractModel) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of high and of low density: A has every coordinate at its mode.

    B has each at the lowest of its other local maxima or, if it has none, at its 2.5 % or 97.5 %
    quantile, whichever is less dense. An end of the domain can be a maximum.
    """
    from scipy.signal import find_peaks

    prior = model.readable("interpolation").prior
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
    paths: Interpolation, path: Path, ends: str = "two samples of the prior"
) -> None:
    """Draw the decoded paths, their log-densities, and the ends on up to three densities.

    `ends` says what A and B are.
    """
    styles = ((paths.slerp, BLUE, "o"), (paths.quantile, ORANGE, "s"))
    points = len(paths.slerp.z)
    height, width = paths.slerp.images.shape[1:3]
    strip = 6.1 / points * height / width
    figure, axes = new_figure(
        7.0, 2 * strip + 4.0, 4, len(paths.curves),
        gridspec_kw={"height_ratios": [strip, strip, 0.95, 1.15]},
    )  # fmt: skip
    for axis in axes[:3].flat:
        axis.remove()
    grid = axes[3, 0].get_gridspec()
    *strips, levels = (figure.add_subplot(grid[i, :]) for i in range(3))
    for axis, (one, colour, marker) in zip(strips, styles, strict=True):
        show_images(axis, one.images)
        axis.set_ylabel(one.name, fontsize=8)
        outside = np.isneginf(one.log_prob)
        line = np.where(outside, np.nan, one.log_prob)
        levels.plot(range(points), line, marker, ls="-", ms=4, lw=1, color=colour, label=one.name)
        if outside.any():
            # At the foot of the panel, in its own coordinates: these have no height.
            levels.plot(
                np.flatnonzero(outside), np.full(outside.sum(), 0.06), "x", ms=5, color=colour,
                transform=levels.get_xaxis_transform(), clip_on=False,
                label=f"{one.name}: outside the domain, p(z) = 0",
            )  # fmt: skip
    strips[0].set_title(f"From A (left) to B (right): {ends}", fontsize=9)
    levels.set_xlim(-0.5, points - 0.5)
    levels.set_xticks(range(points), [f"{t:.3g}" for t in np.linspace(0, 1, points)])
    annotate(levels, "time t along the path", "log p(z), nats", grid=True, legend=True)

    for axis, curve in zip(axes[3], paths.curves, strict=True):
        axis.fill_between(curve.z, curve.density, color=GREY, alpha=0.18, lw=0)
        (learned,) = axis.plot(curve.z, curve.density, color=GREY, lw=1.2)
        top = curve.density.max()
        for (one, colour, marker), level in zip(styles, (0.09, 0.2), strict=True):
            axis.plot(one.at(curve.place), [level * top] * points, marker, ms=2.5, color=colour)
        start, *_, stop = paths.slerp.at(curve.place)
        solid = axis.axvline(start, color="black", lw=1.2)
        dashed = axis.axvline(stop, color="black", lw=1.2, ls="--")
        axis.set_xlim(*density_window(curve, *(one.at(curve.place) for one, _, _ in styles)))
        axis.set_ylim(0, 1.08 * top)
        annotate(axis, symbol(curve.place))
    axes[3, 0].set_ylabel("density", fontsize=8)
    legend_below(figure, {"learned density": learned, "$z_A$": solid, "$z_B$": dashed})
    save_figure(figure, path)


def _draw(gallery: Gallery, path: Path) -> Interpolation:
    model = gallery.model.readable("interpolation", images=True)
    if gallery.between == "data":
        if len(gallery.examples) not in (0, 2):
            raise UserError(
                f"an interpolation has two ends: give --example twice, got {len(gallery.examples)}."
            )
        a, b = gallery.infer(gallery.shown(2), 4)
        what = "latents of two data points"
    elif gallery.between == "modes":
        (a, b), what = mode_pair(model), "every latent at its mode, and at low density"
    else:
        (a, b), what = sample_pair(model, gallery.key(5)), "two samples of the prior"
    paths = interpolation(model, a, b, gallery.points or 9, gallery.influence)
    draw_interpolation(paths, path, what)
    return paths


INTERPOLATION = Figure(
    about="two paths between two latents: on the sphere, and through their quantiles",
    draw=_draw,
    options=("points", "between", "example", "data", "split"),
    caption="From one sample to another: on the sphere through both, and straight through their quantiles",
    section=PRIOR,
    belongs=lambda gallery: gallery.has_densities and gallery.has_images,
)
