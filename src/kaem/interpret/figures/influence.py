"""Which latents move the output, ranked, over their whole range and locally."""

from pathlib import Path

import numpy as np

from ...drawing import BLUE, GREY, ORANGE, new_figure, save_figure
from ..curves import Place, place_name
from ..gallery import Gallery
from ..influence import Influence
from ..panels import annotate
from ._figure import PRIOR, Figure


def draw_influence(found: Influence, path: Path, count: int = 30) -> list[Place]:
    """Draw both measures of the `count` most influential latents, ranked; returns which."""
    places = found.places[:count]
    rows = np.arange(len(places))
    # Side by side: where the output bends within a latent's range, slopes are far above sweeps.
    figure, axes = new_figure(7.0, 1.0 + 0.19 * max(len(places), 4), columns=2, sharey=True)
    panels = (
        (found.sweep, BLUE, "over its whole range: quantile sweep", ""),
        (
            found.jacobian, ORANGE, r"locally: Jacobian, squared slope $\times$ variance",
            "\n(above the sweep where the output bends)",
        ),
    )  # fmt: skip
    for axis, (shares, colour, title, note) in zip(axes[0], panels, strict=True):
        values = np.array([shares[place] for place in places])
        axis.barh(rows, np.nan_to_num(values), height=0.66, color=colour)
        axis.set_xlim(0, None)
        axis.locator_params(axis="x", nbins=6)
        annotate(axis, f"relative to the variance of the output{note}", title=title)
        axis.grid(axis="x", alpha=0.25, lw=0.5, color=GREY)
        axis.set_axisbelow(True)
    axes[0, 0].set_yticks(rows, [place_name(place) for place in places], fontsize=7)
    axes[0, 0].set_ylim(len(places) - 0.4, -0.6)
    axes[0, 0].set_ylabel("latent, ranked by sweep", fontsize=8)
    total, swept = found.sweep.size, int(np.isfinite(found.sweep).sum())
    which = f"all {total} latents" if len(places) == total else f"the first {len(places)} of {total} latents"  # fmt: skip
    rest = f" ({swept} were swept)" if swept < total else ""
    figure.suptitle(f"What moves the output: {which}{rest}", fontsize=9.5)
    save_figure(figure, path)
    return places


def _draw(gallery: Gallery, path: Path) -> Influence:
    draw_influence(gallery.influence, path, gallery.count or 30)
    return gallery.influence


INFLUENCE = Figure(
    about="how much of the output's variance each latent makes (latents, 30)",
    draw=_draw,
    options=("count",),
    caption="How much of the output's variance each latent makes: over its whole range, and by its slope",
    section=PRIOR,
    belongs=lambda gallery: gallery.has_densities,
)
