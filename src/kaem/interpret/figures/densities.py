r"""The learned densities: all that there is to know about the prior, one coordinate in each panel.

Shown are $p_q(z)$ by quadrature, the reference $\pi_0$ it started from, for a mixture its weighted
components $\alpha_{q,p}\,p_{q,p}(z)$, a histogram of exact samples (that sampling and density agree can
be seen), and the aggregated posterior $\frac1n\sum_i p(z_q\mid x_i)$, which a prior that fits its data
matches.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...drawing import BLUE, GREEN, GREY, ORANGE, new_figure, save_figure
from ...errors import UserError
from ...priors import AbstractPrior
from ..curves import Place, curves_at, place_name, places_at
from ..gallery import Gallery
from ..panels import legend_below
from ._figure import PRIOR, Figure

_DRAWS, _CHUNK = 16_384, 2048  # samples in a histogram, and those drawn at once
_BINS = 60
_NEGLIGIBLE = 2e-4  # of the peak: what lies below is not worth a window


class Histogram(NamedTuple):
    """Heights are shares of all draws for each unit of z, also of those outside the edges."""

    edges: Float[np.ndarray, " b+1"]
    heights: Float[np.ndarray, " b"]

    @property
    def centres(self) -> Float[np.ndarray, " b"]:
        return (self.edges[:-1] + self.edges[1:]) / 2


class DensityCurve(NamedTuple):
    """One coordinate's learned density and reference on a grid, and how far it moved."""

    place: Place
    z: np.ndarray
    density: np.ndarray
    reference: np.ndarray
    departure: float
    components: np.ndarray | None  # [P, points] of a mixture, which sum to the density
    samples: Histogram
    posterior: Histogram | None


def density_curves(
    prior: AbstractPrior,
    count: int = 24,
    points: int = 401,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    latents: Float[Array | np.ndarray, "n ..."] | None = None,
    key: PRNGKeyArray | None = None,
) -> list[DensityCurve]:
    r"""Return the first `count` coordinates of `order`, or those with the largest $\mathrm{KL}(p\,\|\,\pi_0)$.

    **Arguments:** `order` are indices into the flattened latent; `latents` are posterior draws of
    data (`infer`); `key` is for the samples.
    """
    departure = np.asarray(prior.summary().departure)
    if order is None:
        order = np.argsort(-departure, axis=None, kind="stable")
    chosen = np.asarray(order)[:count]
    if len(set(chosen.tolist()) & set(range(departure.size))) != len(chosen):
        raise ValueError(
            f"order must hold distinct indices from 0 to {departure.size - 1} into the flattened "
            f"latent, got {chosen.tolist()}."
        )
    components = prior.component_curves(points)
    draws = _draws(prior, jax.random.key(0) if key is None else key, chosen)
    posterior = None
    if latents is not None:
        posterior = np.asarray(latents).reshape(len(latents), -1)[:, chosen]
    curves = []
    for i, curve in enumerate(curves_at(prior, places_at(chosen, prior.shape), points)):
        seen = curve.z[curve.density > _NEGLIGIBLE * curve.density.max()]
        curves.append(
            DensityCurve(
                *curve,
                float(departure[curve.place]),
                None if components is None else np.asarray(components[curve.place[0]]),
                _histogram(draws[:, i], (seen[0], seen[-1]), _BINS),
                None if posterior is None else _histogram(posterior[:, i], None, None),
            )
        )
    return curves


def _draws(prior: AbstractPrior, key: PRNGKeyArray, chosen: np.ndarray) -> np.ndarray:
    """Draw exact samples of the chosen coordinates; all of them at once could be many."""
    ready = prior if prior.cached is not None else prior.cache()
    keys = jax.random.split(key, _DRAWS // _CHUNK)
    parts = [ready.sample(k, _CHUNK).reshape(_CHUNK, -1)[:, chosen] for k in keys]
    return np.concatenate([np.asarray(part) for part in parts])


def _histogram(
    values: np.ndarray, window: tuple[float, float] | None, bins: int | None
) -> Histogram:
    """Return heights over bins of Freedman and Diaconis' width unless their number is given, and 10 to 40 of them."""
    low, high = window if window is not None else (values.min() - 1e-3, values.max() + 1e-3)
    if bins is None:
        between = np.subtract(*np.percentile(values, [75, 25]))
        width = 2 * max(between, 1e-6) / len(values) ** (1 / 3)
        bins = int(np.clip((high - low) / width, 10, 40))
    counts, edges = np.histogram(values, bins, (low, high))
    return Histogram(edges, counts / (len(values) * np.diff(edges)))


def density_sheet(
    prior: AbstractPrior,
    curves: list[DensityCurve],
    path: Path,
    by: str | None = "KL from the reference",
) -> None:
    """Draw the paper's prior plot for many coordinates; `by` says what they are ordered by."""
    columns = min(6, math.ceil(math.sqrt(len(curves) * 1.5)))
    rows = math.ceil(len(curves) / columns)
    figure, axes = new_figure(1.7 * columns + 0.4, 1.45 * rows + 1.0, rows, columns, sharey=True)
    # A domain much wider than the densities would show a spike: the window is where they are.
    seen = [c.z[np.maximum(c.density, c.reference) > _NEGLIGIBLE * c.density.max()] for c in curves]
    window = min(z[0] for z in seen), max(z[-1] for z in seen)
    lines: dict[str, Any] = {}
    for axis, curve in zip(axes.flat, curves, strict=False):
        inside = (curve.z >= window[0]) & (curve.z <= window[1])
        lines |= _panel(axis, _within(curve, inside), prior)
        axis.set_xlim(*window)
    top = max(c.density.max() for c in curves)
    seen_top = max((c.posterior.heights.max() for c in curves if c.posterior), default=0)
    # Shared by all. A posterior that is a spike must not flatten everything else.
    axes[0, 0].set_ylim(0, 1.06 * max(top, min(seen_top, 1.3 * top)))
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    shown, total = len(curves), math.prod(prior.shape)
    which = f"all {total}" if shown == total else f"{shown} of {total}"
    end = " " if columns > 3 else "\n"
    ordered = f",{end}ordered by {by}" if by else ""
    figure.suptitle(f"Learned prior densities: {which}{ordered}", fontsize=10)
    for axis in axes.flat[max(0, shown - columns) : shown]:  # the lowest of each column
        axis.set_xlabel("latent z", fontsize=8)
    figure.supylabel("density", fontsize=9)
    legend_below(figure, lines, columns)
    save_figure(figure, path)


def _within(curve: DensityCurve, inside: np.ndarray) -> DensityCurve:
    """Return only what the window shows: an SVG would hold the rest too."""
    names = ("z", "density", "reference", "components")[: 3 if curve.components is None else 4]
    return curve._replace(**{name: getattr(curve, name)[..., inside] for name in names})


def _panel(axis: Any, curve: DensityCurve, prior: AbstractPrior) -> dict[str, Any]:
    """Draw one coordinate; returns what the legend needs."""
    index = "q,p" if len(curve.place) == 2 else "q"
    reference = {"none": "flat (no reference)"}.get(prior.reference, prior.reference)
    axis.fill_between(curve.z, curve.density, color=BLUE, alpha=0.25, lw=0)
    lines = {
        f"learned $p_{{{index}}}(z)$": axis.plot(curve.z, curve.density, color=BLUE, lw=1.2)[0],
        rf"reference $\pi_0(z)$: {reference}": axis.plot(
            curve.z, curve.reference, color=ORANGE, lw=1.1, ls="--"
        )[0],
        "exact samples": axis.stairs(
            curve.samples.heights, curve.samples.edges, color="black", lw=0.5
        ),
    }
    if curve.posterior is not None:
        (lines["aggregated posterior of data"],) = axis.plot(
            curve.posterior.centres, curve.posterior.heights, color=GREEN, lw=1.1
        )
    if curve.components is not None:
        parts = axis.plot(
            curve.z, curve.components.T, color=GREY, lw=0.4, alpha=0.5, rasterized=True
        )
        lines[r"components $\alpha_{q,p}\,p_{q,p}(z)$"] = parts[0]
    axis.set_title(f"{place_name(curve.place)}   KL {curve.departure:.2g}", fontsize=7.5, pad=3)
    axis.tick_params(labelsize=7)
    return lines


def _draw(gallery: Gallery, path: Path) -> list[DensityCurve]:
    prior = gallery.model.readable("densities").prior
    order = [int(np.ravel_multi_index(p, prior.shape)) for p in gallery.places(24)]
    by = None if gallery.latents else "influence on the output"
    try:
        _, latents = gallery.explained
    except (UserError, OSError):
        if gallery.source is not None:
            raise
        latents = None  # the run's own data are not on this machine any more
    count, key = len(order), gallery.key(2)
    curves = density_curves(prior, count, 1201, order=order, latents=latents, key=key)
    density_sheet(prior, curves, path, by)
    return curves


DENSITIES = Figure(
    about="every learned density, with exact samples and the posterior of data (latents, 24)",
    draw=_draw,
    options=("count", "latent", "data", "split"),
    caption="The learned densities against their reference, ordered by influence, with exact samples and the aggregated posterior of data",
    section=PRIOR,
    belongs=lambda gallery: gallery.has_densities,
)
