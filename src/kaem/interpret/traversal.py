r"""Traversals: one latent swept through its quantiles, the others fixed.

$$x(u_j) = G\big(F_1^{-1}(u_1), \ldots, F_j^{-1}(u_j), \ldots\big),\qquad u_j\in[u_{\text{low}}, u_{\text{high}}].$$
Equal steps of $u_j$ are equal probabilities, so a strip shows what the latent does in the
proportions in which it does it. The figure ties each image to its place on the density.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..model import AbstractModel
from .curves import Curve, Place, curves_at, place_name, symbol
from .figures import BLUE, GREY, ORANGE, new_figure, save_figure
from .influence import readable


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
    def brightness(self) -> np.ndarray:
        """The mean pixel of each image."""
        return self.images.mean(axis=(1, 2, 3))

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
    kaem = readable(model, "traversal", images=True)
    shape = kaem.prior.shape
    middle = jnp.full(shape, 0.5) if base is None else jnp.asarray(base)
    if middle.shape != shape:
        raise ValueError(
            f"`base` must hold a quantile for each latent, shape {shape}, got {middle.shape}."
        )
    curves = curves_at(kaem.prior, places)
    quantiles = np.linspace(low, high, points)
    made = []
    for curve in curves:
        u = jnp.broadcast_to(middle, (points, *shape)).at[:, *curve.place].set(quantiles)
        z = kaem.prior.inverse_cdf(u)
        swept = np.asarray(z[:, *curve.place], np.float64)
        made.append(Traversal(curve, quantiles, swept, np.asarray(kaem.decode(z), np.float64)))
    return made


def show_images(axis: Any, images: np.ndarray) -> None:
    """A strip in which image k is centred at x = k, one unit apart, without ticks."""
    height, width = images.shape[1:3]
    half = 0.47
    for k, image in enumerate(images):
        axis.imshow(
            np.clip(image, 0, 1).squeeze(-1) if image.shape[-1] == 1 else np.clip(image, 0, 1),
            cmap="gray", vmin=0, vmax=1, interpolation="nearest",
            extent=(k - half, k + half, -half * height / width, half * height / width),
        )  # fmt: skip
    axis.set_xlim(-0.5, len(images) - 0.5)
    axis.set_ylim(-half * height / width, half * height / width)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)


def density_window(curve: Curve, *marked: np.ndarray) -> tuple[float, float]:
    """Where the density is, and whatever else is marked on it: domains are often much wider."""
    seen = curve.z[curve.density > 0.01 * curve.density.max()]
    every = np.concatenate([seen, *map(np.atleast_1d, marked)])
    margin = 0.03 * (every.max() - every.min())
    return every.min() - margin, every.max() + margin


def draw_traversal(found: Sequence[Traversal], path: Path, base: str = "their medians") -> None:
    """Image strips over densities, each image tied to its quantile; `base` says where the others are."""
    from matplotlib.patches import ConnectionPatch

    points = len(found[0].u)
    height, width = found[0].images.shape[1:3]
    strip = 6.3 / points * height / width
    ratios = [strip, 0.95] * len(found)
    figure, axes = new_figure(
        7.0, sum(ratios) + 0.66 * len(found) + 0.6, 2 * len(found), gridspec_kw={"height_ratios": ratios}
    )  # fmt: skip
    for row, one in enumerate(found):
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
        axis.tick_params(labelsize=7)
        axis.set_ylabel("density", fontsize=8)
        axis.set_xlabel(symbol(one.curve.place), fontsize=8, labelpad=1)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0, 0].set_xticks(range(points), [f"{100 * u:.0f} %" for u in found[0].u], fontsize=7)
    axes[0, 0].tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    low, high = 100 * found[0].u[0], 100 * found[0].u[-1]
    figure.suptitle(
        f"One latent at a time from its {low:g} % to its {high:g} % quantile, the others at {base}",
        fontsize=9,
    )
    figure.legend(
        [learned, dashed, dots],
        ["learned density", r"reference $\pi_0$", "where the images are"],
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path)
