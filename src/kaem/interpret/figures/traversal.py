r"""Traversals: one latent swept through its quantiles, the others fixed.

$$x(u_j) = G\big(F_1^{-1}(u_1), \ldots, F_j^{-1}(u_j), \ldots\big),\qquad u_j\in[u_{\text{low}}, u_{\text{high}}].$$
Equal steps of $u_j$ are equal probabilities, so a strip shows what the latent does in the
proportions in which it does it. The figure ties each image to its place on the density.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...data.checks import checked_finite
from ...drawing import BLUE, GREY, ORANGE, new_figure, save_figure
from ...models import AbstractModel
from ..curves import Curve, Place, curves_at, place_name, symbol
from ..gallery import Gallery
from ..panels import annotate, density_window, legend_below, show_images
from ._figure import PRIOR, Figure


class Traversal(NamedTuple):
    """What one latent does between two of its quantiles."""

    curve: Curve
    u: np.ndarray
    z: np.ndarray
    images: np.ndarray  # [points, H, W, C]

    @property
    def density(self) -> np.ndarray:
        """At each z."""
        return self.curve.at(self.z)

    @property
    def change(self) -> np.ndarray:
        """The root mean square change of a pixel from each image to the next."""
        return np.sqrt(np.mean(np.diff(self.images, axis=0) ** 2, axis=(1, 2, 3)))


def traversal(
    model: AbstractModel,
    places: Sequence[Place],
    points: int = 11,
    base: Float[Array, "..."] | None = None,
    low: float = 0.01,
    high: float = 0.99,
) -> list[Traversal]:
    """Sweep each latent of `places` from quantile `low` to `high`; the others stay at `base`.

    `base` holds quantiles, one for each latent: the medians by default, or the `prior.cdf(z)` of a
    latent z to look around it.
    """
    if not places or points < 2 or not 0 <= low < high <= 1:
        raise ValueError(
            "a traversal needs a latent, at least 2 points and 0 <= low < high <= 1, "
            f"got {len(places)} latents and {points} points from {low} to {high}."
        )
    kaem = model.readable("traversal", images=True)
    shape = kaem.prior.shape
    middle = jnp.full(shape, 0.5) if base is None else jnp.asarray(base)
    if middle.shape != shape:
        raise ValueError(
            f"`base` must hold a quantile for each latent, shape {shape}, got {middle.shape}."
        )
    quantiles = np.linspace(low, high, points)
    strips = []
    for curve in curves_at(kaem.prior, places):
        u = jnp.broadcast_to(middle, (points, *shape)).at[:, *curve.place].set(quantiles)
        z = kaem.prior.inverse_cdf(u)
        swept = np.asarray(z[:, *curve.place], np.float64)
        images = checked_finite(kaem.decode(z)).astype(np.float64)
        strips.append(Traversal(curve, quantiles, swept, images))
    return strips


def draw_traversal(strips: Sequence[Traversal], path: Path, base: str = "their medians") -> None:
    """Draw image strips over densities, each image tied to its quantile; `base` says where the others are."""
    from matplotlib.patches import ConnectionPatch

    points = len(strips[0].u)
    height, width = strips[0].images.shape[1:3]
    strip = 6.3 / points * height / width
    ratios = [strip, 0.95] * len(strips)
    figure, axes = new_figure(
        7.0, sum(ratios) + 0.66 * len(strips) + 0.6, 2 * len(strips), gridspec_kw={"height_ratios": ratios}
    )  # fmt: skip
    for row, one in enumerate(strips):
        images, axis = axes[2 * row, 0], axes[2 * row + 1, 0]
        show_images(images, one.images)
        images.set_title(
            f"{place_name(one.curve.place)}:  a pixel changes by {one.change.mean():.2g} (RMS) from image to image",
            fontsize=8,
        )  # fmt: skip
        axis.fill_between(one.curve.z, one.curve.density, color=BLUE, alpha=0.3, lw=0)
        (learned,) = axis.plot(one.curve.z, one.curve.density, color=BLUE, lw=1.2)
        (dashed,) = axis.plot(one.curve.z, one.curve.reference, color=ORANGE, lw=1.1, ls="--")
        (dots,) = axis.plot(one.z, one.density, "o", ms=3.5, color=GREY, clip_on=False)
        top = 1.12 * one.curve.density.max()
        axis.vlines(one.z, one.density, top, color=GREY, lw=0.5, alpha=0.7)
        for k, z in enumerate(one.z):
            tie = ConnectionPatch(
                (k, -0.47 * height / width), (z, top), images.transData, axis.transData,
                color=GREY, lw=0.5, alpha=0.7,
            )  # fmt: skip
            tie.set_in_layout(False)
            figure.add_artist(tie)
        axis.set_xlim(*density_window(one.curve, one.z))
        axis.set_ylim(0, top)
        annotate(axis, symbol(one.curve.place), "density")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_xticks(range(points), [f"{100 * u:.0f} %" for u in strips[0].u], fontsize=7)
    axes[0, 0].tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    low, high = 100 * strips[0].u[0], 100 * strips[0].u[-1]
    figure.suptitle(
        f"One latent at a time from its {low:g} % to its {high:g} % quantile, the others at {base}",
        fontsize=9,
    )
    lines = {"learned density": learned, r"reference $\pi_0$": dashed, "where the images are": dots}
    legend_below(figure, lines)
    # The first layout finds how wide tick labels are, the second makes room for them.
    figure.draw_without_rendering()
    save_figure(figure, path)


def _draw(gallery: Gallery, path: Path) -> list[Traversal]:
    model = gallery.model.readable("traversal", images=True)
    base, others = None, "their medians"
    if gallery.examples:
        z = gallery.infer(gallery.shown(1, most=1), 3)
        base, others = model.prior.cdf(jnp.asarray(z[0])), f"example {gallery.examples[0]}"
    # Latents of one q do nearly the same: each q is shown once, by the one that does most.
    places = gallery.places(5) if gallery.latents else gallery.influence.leading(gallery.count or 5)
    strips = traversal(model, places, gallery.points or 11, base)
    draw_traversal(strips, path, others)
    return strips


TRAVERSAL = Figure(
    about="one latent at a time swept through its quantiles (latents, 5 of different q)",
    draw=_draw,
    options=("count", "points", "latent", "example", "data", "split"),
    caption="One latent swept through its quantiles, all others at their medians: what it does, above where it does it",
    section=PRIOR,
    belongs=lambda gallery: gallery.has_densities and gallery.has_images,
)
