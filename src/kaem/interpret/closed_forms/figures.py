"""The closed forms that miss most, over the densities they stand for."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...priors import AbstractPrior
from ..figures import BLUE, GREY, ORANGE, new_figure, save_figure
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
    """Learned densities and closed forms of the `count` worst fits, the worst first."""
    worst = {fit.place: fit for fit in fits.worst(count)}
    found = {
        place: Comparison(fit, target.z, target.density, density_of(fit.form, target))
        for place, target in targets(prior, fits.of)
        for fit in (worst.get(place),)
        if fit is not None
    }
    return [found[place] for place in worst]


def symbolic_sheet(
    prior: AbstractPrior, fits: Fits, path: Path, count: int = 8
) -> list[Comparison]:
    """Densities above, what the closed form adds to or takes from them below."""
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
        place = ", ".join(f"{n}={k + 1}" for n, k in zip("qp", c.fit.place, strict=False))
        verdict = "" if c.fit.good else "no good closed form; best found:\n"
        name = _broken(family(c.fit.form, fits.of))
        above.set_title(
            f"{place}   error {c.fit.relative_error:.2%}\n{verdict}{name}", fontsize=7, pad=3
        )
        above.set_ylim(0, None)
        below.set_ylim(-edge, edge)
        for axis in (above, below):
            axis.tick_params(labelsize=7)
        if column == 0:
            above.set_ylabel("density", fontsize=7.5)
            below.set_ylabel("error\n(% of peak)", fontsize=7)
        if i + columns >= len(shown):
            below.set_xlabel("latent z", fontsize=7.5)
            below.tick_params(labelbottom=True)
    for i in range(len(shown), rows * columns):
        for axis in (
            axes[2 * (i // columns), i % columns],
            axes[2 * (i // columns) + 1, i % columns],
        ):
            axis.axis("off")
    which = (
        f"the {len(shown)} worst of {len(fits)}" if len(shown) < len(fits) else f"all {len(fits)}"
    )
    figure.suptitle(f"Closed forms of learned densities: {which}", fontsize=9.5)
    figure.legend(
        [learned, closed, line],
        ["learned density", "closed form", "closed form - learned"],
        loc="outside lower center", ncols=3, fontsize=7.5, frameon=False,
    )  # fmt: skip
    save_figure(figure, path)
    return shown


def _broken(name: str, width: int = 30) -> str:
    """A family's name on lines that fit over a panel."""
    lines = [""]
    for part in name.split(" + "):
        joined = f"{lines[-1]} + {part}" if lines[-1] else part
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(f"+ {part}")
    return "\n".join(lines)
