"""The closed forms that miss most, over the densities they stand for."""

import math
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...drawing import BLUE, GREY, ORANGE, new_figure, save_figure
from ...priors import AbstractPrior
from ..curves import place_name
from ..panels import annotate, legend_below
from .fits import Fit, Fits, family, targets
from .fitting import density_of

_COLUMNS = 4


class Comparison(NamedTuple):
    """A learned density and its closed form on a grid."""

    fit: Fit
    z: np.ndarray
    learned: np.ndarray
    closed: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        """The closed form's error, as a share of the learned density's peak."""
        return (self.closed - self.learned) / self.learned.max()


def comparisons(prior: AbstractPrior, fits: Fits, count: int = 8) -> list[Comparison]:
    """Return learned densities and closed forms of the `count` worst fits, the worst first."""
    learned = dict(targets(prior, fits.of))
    pairs = [(fit, learned[fit.place]) for fit in fits.worst(count)]
    return [Comparison(fit, t.z, t.density, density_of(fit.form, t)) for fit, t in pairs]


def symbolic_sheet(
    prior: AbstractPrior, fits: Fits, path: Path, count: int = 8
) -> list[Comparison]:
    """Draw densities above, what the closed form adds to or takes from them below."""
    shown = comparisons(prior, fits, count)
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure, axes = new_figure(
        max(1.8 * columns, 3.8), 2.35 * rows + 0.7, 2 * rows, columns,
        height_ratios=[2.4, 1] * rows, sharex=True,
    )  # fmt: skip
    edge = 110 * max(np.abs(c.residual).max() for c in shown) + 1e-9  # the same for all, in percent
    for i, c in enumerate(shown):
        row, column = 2 * (i // columns), i % columns
        above, below = axes[row, column], axes[row + 1, column]
        above.fill_between(c.z, c.learned, color=BLUE, alpha=0.35, lw=0)
        (learned,) = above.plot(c.z, c.learned, color=BLUE, lw=1.2)
        (closed,) = above.plot(c.z, c.closed, color=ORANGE, lw=1.1, ls="--")
        (line,) = below.plot(c.z, 100 * c.residual, color=GREY, lw=0.9)
        below.axhline(0, color=GREY, lw=0.5, alpha=0.5)
        verdict = "" if c.fit.good else "no good form; best found:\n"
        name = _broken(family(c.fit.form, fits.of))
        above.set_title(
            f"{place_name(c.fit.place)}   error {c.fit.relative_error:.2%}\n{verdict}{name}",
            fontsize=7,
            pad=3,
        )
        above.set_ylim(0, None)
        below.set_ylim(-edge, edge)
        lowest, first = i + columns >= len(shown), column == 0
        annotate(above, y="density" if first else "")
        annotate(below, "latent z" if lowest else "", "error\n(% of peak)" if first else "")
        below.tick_params(labelbottom=lowest)
    for axis in axes[-2:, columns - (rows * columns - len(shown)) :].flat:
        axis.axis("off")
    some = len(shown) < len(fits)
    which = f"the {len(shown)} worst of {len(fits)}" if some else f"all {len(fits)}"
    figure.suptitle(f"Closed forms of learned densities: {which}", fontsize=9.5)
    lines = {"learned density": learned, "closed form": closed, "closed form - learned": line}
    legend_below(figure, lines)
    save_figure(figure, path)
    return shown


def _broken(name: str, width: int = 30) -> str:
    """Return a family's name on lines that fit over a panel, broken only before its sums."""
    terms = [term.replace(" ", "\N{NO-BREAK SPACE}") for term in name.split(" + ")]
    return textwrap.fill(" +\N{NO-BREAK SPACE}".join(terms), width, break_long_words=False)
