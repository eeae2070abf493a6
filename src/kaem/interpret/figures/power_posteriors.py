r"""The figure of the power posteriors: marginals over one another as t rises, and two coordinates jointly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from ...data.sheets import is_image
from ...drawing import BLUE, ORANGE, save_figure
from ...models import LatentModel
from ..curves import Place, symbol
from ..gallery import Gallery
from ..panels import annotate, show_image
from ..power_posteriors import PowerPosteriors, power_posteriors
from ._figure import Figure


class Marginal(NamedTuple):
    """One coordinate's densities at all temperatures where they are, exact at t = 0."""

    place: Place
    z: Float[np.ndarray, " N"]
    densities: Float[np.ndarray, "T N"]


def marginals(
    model: LatentModel, powers: PowerPosteriors, places: Sequence[Place], points: int = 401
) -> list[Marginal]:
    """Return densities of some coordinates: the prior's by quadrature, the others by kernels."""
    nodes, learned = (np.asarray(a, float) for a in model.prior.densities(4001))
    shown = []
    for place in places:
        domain = nodes[place[1] if len(place) == 2 and len(nodes) > 1 else 0]
        cumulative = np.cumsum(learned[place]) / np.sum(learned[place])
        at: Any = (slice(1, None), slice(None), *place)
        particles = powers.latents[at]
        ends = np.percentile(particles, [0.5, 99.5], axis=1)
        low = min(domain[np.searchsorted(cumulative, 0.005)], ends[0].min())
        high = max(domain[np.searchsorted(cumulative, 0.995)], ends[1].max())
        z = np.linspace(low, high, points)
        rest = [_kernels(values, z, domain[[0, -1]]) for values in particles]
        shown.append(Marginal(place, z, np.stack([np.interp(z, domain, learned[place]), *rest])))
    return shown


def _kernels(
    values: Float[np.ndarray, " M"], z: Float[np.ndarray, " N"], domain: np.ndarray
) -> Float[np.ndarray, " N"]:
    """Return a sum of normals of Silverman's width, reflected where the domain ends: no mass leaves it."""
    values = values.astype(float)
    spread = min(values.std(), np.subtract(*np.percentile(values, [75, 25])) / 1.34)
    width = max(0.9 * spread * len(values) ** -0.2, z[1] - z[0])
    images = np.concatenate([values, *(2 * end - values for end in domain)])
    return stats.norm.pdf(z[:, None], images, width).sum(axis=1) / len(values)


def power_posterior_figure(
    model: LatentModel, powers: PowerPosteriors, path: Path
) -> list[Marginal]:
    """Draw the example and its reconstruction, the marginals that moved most, and two of them jointly."""
    from matplotlib.figure import Figure

    shown = marginals(model, powers, powers.most_moved(3))
    joint = len(shown) > 1
    figure = Figure(figsize=(7.2, 5.2 if joint else 3.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.7, 1)) if joint else (figure, None)
    above, below = parts
    left, right = above.subfigures(1, 2, width_ratios=(1, 3.6))
    _example(left.subplots(2, 1), powers)
    axes = right.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, marginal in zip(axes, shown, strict=True):
        _ridges(axis, powers, marginal)
    axes[0].set_ylabel("temperature t", fontsize=8)
    right.suptitle(
        "Marginals that moved most, KL in nats; each is scaled to its peak, the prior exact",
        fontsize=8,
    )
    if below is not None:
        rows = np.unique(np.linspace(0, len(powers.t) - 1, 5).round().astype(int))
        axes = below.subplots(1, len(rows), sharey=True, squeeze=False)[0]
        for axis, k in zip(axes, rows, strict=True):
            _joint(axis, powers, shown[:2], int(k))
        axes[0].set_ylabel(symbol(shown[1].place), fontsize=8)
        below.suptitle("Two of them together; contours hold 50 % and 90 % of the prior", fontsize=8)
    figure.suptitle(
        r"Power posteriors $p(z\,|\,x,t) \propto p(z)\,p(x\,|\,z)^t$ of one example", fontsize=10
    )
    save_figure(figure, path)
    return shown


def _example(axes: Any, powers: PowerPosteriors) -> None:
    error = np.mean((powers.x - powers.made) ** 2)
    titles = ("example x", f"mean reconstruction\nat t = 1, error {error:.2g}")
    for axis, values, title in zip(axes, (powers.x, powers.made), titles, strict=True):
        if is_image(values.shape):
            show_image(axis, values)
        else:
            axis.plot(values.reshape(-1), ".", ms=3, color=BLUE)
            annotate(axis, "dimension")
        axis.set_title(title, fontsize=7.5)


def _ridges(axis: Any, powers: PowerPosteriors, marginal: Marginal) -> None:
    """Draw densities above one another, the prior lowest; each is scaled to its own peak."""
    z = marginal.z
    for k, density in reversed(list(enumerate(marginal.densities))):
        colour = ORANGE if k == 0 else BLUE
        height = k + 1.5 * density / density.max()
        axis.fill_between(z, k, height, color=colour, alpha=0.3, lw=0, zorder=-k)
        axis.plot(z, height, color=colour, lw=0.9, zorder=-k)
    axis.set_yticks(range(len(powers.t)), [f"{t:.2g}" for t in powers.t])
    axis.set_xlim(z[0], z[-1])
    annotate(axis, symbol(marginal.place), title=f"KL {powers.moved[-1][marginal.place]:.2g}")


def _joint(axis: Any, powers: PowerPosteriors, pair: list[Marginal], k: int) -> None:
    """Draw particles of two coordinates over the prior's contours, which hold half and nine tenths of it."""
    first, second = pair
    density = np.outer(second.densities[0], first.densities[0])
    ranked = np.sort(density, axis=None)[::-1]
    held = np.cumsum(ranked) / ranked.sum()
    levels = [ranked[np.searchsorted(held, share)] for share in (0.9, 0.5)]
    axis.contour(first.z, second.z, density, levels, colors=ORANGE, linewidths=0.8)
    draws = powers.latents[k]
    at = [draws[:, *m.place] for m in pair]
    axis.plot(*at, ".", ms=1.5, color=BLUE, alpha=0.5, rasterized=True)
    axis.set_xlim(first.z[0], first.z[-1])
    axis.set_ylim(second.z[0], second.z[-1])
    annotate(axis, symbol(first.place), title=f"t = {powers.t[k]:.2g}")


def _draw(gallery: Gallery, path: Path) -> PowerPosteriors:
    model = gallery.model.with_quantiles("power-posteriors")
    x = gallery.shown(3, most=1)
    powers = power_posteriors(model, x[len(x) // 2], gallery.key(6))
    power_posterior_figure(model, powers, path)
    return powers


POWER_POSTERIORS = Figure(
    about="how one example takes hold of the latents, from the prior to its posterior",
    draw=_draw,
    options=("example", "data", "split"),
)
