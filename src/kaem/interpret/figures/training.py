"""What a run logged, over its updates."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...drawing import BLUE, ORANGE, new_figure, save_figure
from ...errors import UserError
from ..panels import annotate
from ._figure import Figure

# Of each panel: what its axis says, and the series in it by what they are called.
_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "log-likelihood (nats per example)",
        {"log_likelihood": r"$E_{post}\,\log p(x|z)$", "log_marginal": r"$\log \hat p(x)$"},
    ),
    ("log-prior (nats)", {"log_prior": r"$E_{post}\,\log p(z)$"}),
    ("evidence lower bound (nats per example)", {"elbo": "ELBO"}),
    ("KL of posterior from prior (nats)", {"kl": "KL"}),
    ("squared error of the predicted noise", {"denoising_error": "denoising error"}),
    ("squared error of a pixel", {"reconstruction": "posterior mean squared error"}),
    ("effective sample size", {"ess": "mean", "ess_min": "minimum"}),
    ("drift of a Langevin step (RMS)", {"drift": "drift"}),
    ("arrivals at t = 1 from the prior", {"round_trips": "per example and update"}),
    ("error of the CDF tables", {"table_error": "estimated sup error"}),
)
# What is not drawn: the clock, what other panels imply, and what other figures show.
_ELSEWHERE = re.compile(
    "step|seconds|loss|collapsed|resampled|acceptance|lost|redrawn|score_error|swap_|t_|validation_"
)
_LOGARITHMIC = ("table_error", "ess", "denoising_error")


def training_curves(history: list[dict[str, Any]], path: Path) -> dict[str, np.ndarray]:
    """Draw what the run logged; returns the series by name, and their `step`."""
    if not history:
        raise UserError("the run has no history yet; train it for at least one log interval.")
    steps = np.array([record["step"] for record in history])
    known = {name for _, names in _PANELS for name in names}
    others = [name for name in history[0] if name not in known and not _ELSEWHERE.match(name)]
    series = {
        name: np.array([record.get(name, np.nan) for record in history], float)
        for name in (*sorted(known), *others)
        if name in history[0]
    }
    panels = [(label, names) for label, names in _PANELS if next(iter(names)) in series]
    panels += [(name.replace("_", " "), {name: name}) for name in others]
    if not panels:
        raise UserError(
            "the history has none of the numbers that training logs (log_likelihood, loss, ...); restore "
            "history.jsonl, or train on."
        )
    rows = math.ceil(len(panels) / 2)
    figure, axes = new_figure(7.2, 2.4 * rows, rows, 2)
    for axis, (label, names) in zip(axes.flat, panels, strict=False):
        shown = [name for name in names if name in series]
        for name, colour in zip(shown, (BLUE, ORANGE), strict=False):
            marker = "o" if len(steps) == 1 else None
            axis.plot(steps, series[name], color=colour, lw=1.2, marker=marker, label=names[name])
        if shown[0] in _LOGARITHMIC and any((series[name] > 0).any() for name in shown):
            axis.set_yscale("log")
            axis.tick_params(which="minor", labelsize=6)
        annotate(axis, "update", label, grid=True, legend=len(names) > 1)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    save_figure(figure, path)
    return {"step": steps, **series}


TRAINING = Figure(
    about="what was logged while training",
    draw=lambda gallery, path: training_curves(gallery.run.history(), path),
    caption="What was logged during training",
    section="Training",
)
