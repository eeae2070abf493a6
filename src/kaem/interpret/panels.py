"""What panels of several figures share: small print, legends, strips of images."""

from typing import Any

import numpy as np

from .curves import Curve


def annotate(
    axis: Any,
    x: str = "",
    y: str = "",
    title: str = "",
    *,
    grid: bool = False,
    legend: bool = False,
) -> None:
    """Name the axes of a panel, and the panel, in small print."""
    axis.tick_params(labelsize=7)
    if x:
        axis.set_xlabel(x, fontsize=8, labelpad=1)
    if y:
        axis.set_ylabel(y, fontsize=8)
    if title:
        axis.set_title(title, fontsize=8)
    if grid:
        axis.grid(alpha=0.25, lw=0.5)
    if legend:
        axis.legend(fontsize=7, frameon=False)


def legend_below(figure: Any, lines: dict[str, Any], columns: int = 3) -> None:
    """Put one legend for all panels below them; `lines` are what is drawn, by its name."""
    # An entry is about as wide as its longest name and its line: 0.07 inches a letter, and 0.7.
    fitting = int(figure.get_figwidth() / (0.7 + 0.07 * max(map(len, lines))))
    figure.legend(
        lines.values(), lines.keys(),
        loc="outside lower center", ncols=max(1, min(columns, len(lines), fitting)),
        fontsize=8, frameon=False,
    )  # fmt: skip


def show_image(axis: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image [H, W, 1 or 3] within [0, 1], without numbers at its sides."""
    image = np.clip(image, 0, 1)
    image = image[..., 0] if image.shape[-1] == 1 else image
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, **options)
    axis.set(xticks=[], yticks=[])


def show_images(axis: Any, images: np.ndarray) -> None:
    """Draw a strip in which image k is centred at x = k, one unit apart."""
    height, width = images.shape[1:3]
    half, tall = 0.47, 0.47 * height / width
    for k, image in enumerate(images):
        extent = (k - half, k + half, -tall, tall)
        show_image(axis, image, interpolation="nearest", extent=extent)
    axis.set(xlim=(-0.5, len(images) - 0.5), ylim=(-tall, tall))
    axis.spines[:].set_visible(False)


def density_window(curve: Curve, *marked: np.ndarray) -> tuple[float, float]:
    """Return where the density is, and whatever else is marked on it: domains are often much wider."""
    seen = curve.z[curve.density > 0.01 * curve.density.max()]
    every = np.concatenate([seen, *map(np.atleast_1d, marked)])
    margin = 0.03 * (every.max() - every.min())
    return every.min() - margin, every.max() + margin
