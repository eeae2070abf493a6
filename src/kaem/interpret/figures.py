"""What all figures share, and training curves.

Each figure has a function that computes its data and one that draws it, so that tests can check
what is shown. Colours are Okabe and Ito's, distinguishable with any colour vision.
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import write_atomically

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG or SVG, by the suffix."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"figures are written as .png or .svg, got {path}.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


_PANELS = (
    (("log_likelihood", "log_marginal"), "log-likelihood (nats per example)"),
    (("log_prior",), "log-prior (nats)"),
    (("elbo",), "evidence lower bound (nats per example)"),
    (("kl",), "KL of posterior from prior (nats)"),
    (("denoising_error",), "squared error of the predicted noise"),
    (("reconstruction",), "squared error of a pixel"),
    (("ess", "ess_min"), "effective sample size"),
    (("drift",), "drift of a Langevin step (RMS)"),
    (("round_trips",), "arrivals at t = 1 from the prior"),
    (("table_error",), "error of the CDF tables"),
)
_NAMES = {
    "log_likelihood": r"$E_{post}\,\log p(x|z)$",
    "log_marginal": r"$\log \hat p(x)$",
    "elbo": "ELBO",
    "kl": "KL",
    "denoising_error": "denoising error",
    "log_prior": r"$E_{post}\,\log p(z)$",
    "reconstruction": "posterior mean squared error",
    "drift": "drift",
    "round_trips": "per example and update",
    "ess": "mean",
    "ess_min": "minimum",
    "table_error": "estimated sup error",
}


def training_curves(history: list[dict[str, Any]], path: Path) -> dict[str, np.ndarray]:
    """What the run logged, over its updates."""
    if not history:
        raise UserError("the run has no history yet; train it for at least one log interval.")
    steps = np.array([record["step"] for record in history])
    series = {
        name: np.array([record.get(name, np.nan) for record in history], float)
        for names, _ in _PANELS
        for name in names
        if name in history[0]
    }
    panels = [(names, label) for names, label in _PANELS if names[0] in series]
    if not panels:
        raise UserError(
            "the history has none of the numbers that training logs (log_likelihood, loss, ...); restore "
            "history.jsonl, or train on."
        )
    figure, axes = new_figure(7.2, 2.4 * math.ceil(len(panels) / 2), math.ceil(len(panels) / 2), 2)
    for axis, (names, label) in zip(axes.flat, panels, strict=False):
        for name, colour in zip(names, (BLUE, ORANGE), strict=False):
            if name in series:
                marker = "o" if len(steps) == 1 else None
                axis.plot(
                    steps, series[name], color=colour, lw=1.2, marker=marker, label=_NAMES[name]
                )
        values = np.concatenate([series[n] for n in names if n in series])
        if names[0] in ("table_error", "ess", "denoising_error") and (values > 0).any():
            axis.set_yscale("log")
            axis.tick_params(which="minor", labelsize=6)
        axis.set_ylabel(label, fontsize=8)
        axis.set_xlabel("update", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25, lw=0.5)
        if len(names) > 1:
            axis.legend(fontsize=7, frameon=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    save_figure(figure, path)
    return {"step": steps, **series}
