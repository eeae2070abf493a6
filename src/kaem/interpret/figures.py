"""Figures: the learned densities against their reference, training curves.

Each figure has a function that computes its data and one that draws it, so that tests can check
what is shown. Colours are Okabe and Ito's, distinguishable with any colour vision.
"""

import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..errors import UserError
from ..priors import AbstractPrior
from ..serialisation import write_atomically

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"


class DensityCurve(NamedTuple):
    """One coordinate's learned density and reference on a grid, and how far it moved."""

    place: tuple[int, ...]  # (q, p), or (q,) of a mixture
    z: np.ndarray
    density: np.ndarray
    reference: np.ndarray
    departure: float


def density_curves(prior: AbstractPrior, count: int = 24, points: int = 401) -> list[DensityCurve]:
    r"""The `count` coordinates that departed most from the reference, by $\mathrm{KL}(p\,\|\,\pi_0)$."""
    departure = np.asarray(prior.summary().departure)
    order = np.argsort(-departure, axis=None, kind="stable")[:count]
    nodes, values = prior.densities(points)
    log_pi = np.asarray(jnp.broadcast_to(prior.pi_0.log_density(nodes), nodes.shape), np.float64)
    z, density = np.asarray(nodes, np.float64), np.asarray(values, np.float64)
    reference = np.exp(log_pi)
    reference /= np.trapezoid(reference, z, axis=1)[:, None]
    curves = []
    for i in order:
        index = tuple(int(axis) for axis in np.unravel_index(i, departure.shape))
        row = index[1] if len(index) == 2 else 0
        curves.append(
            DensityCurve(index, z[row], density[index], reference[row], float(departure[index]))
        )
    return curves


def _figure(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs: Any) -> Any:
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


def density_sheet(prior: AbstractPrior, path: Path, count: int = 24) -> list[DensityCurve]:
    """The paper's prior plot for many coordinates: learned shaded, reference dashed."""
    curves = density_curves(prior, count)
    columns = min(6, math.ceil(math.sqrt(len(curves) * 1.5)))
    rows = math.ceil(len(curves) / columns)
    figure, axes = _figure(1.7 * columns + 0.4, 1.45 * rows + 0.9, rows, columns, sharey=True)
    # A domain much wider than the densities would show a spike: the window is where they are.
    seen = [c.z[np.maximum(c.density, c.reference) > 2e-4 * c.density.max()] for c in curves]
    window = min(z[0] for z in seen), max(z[-1] for z in seen)
    for axis, curve in zip(axes.flat, curves, strict=False):
        axis.fill_between(curve.z, curve.density, color=BLUE, alpha=0.35, lw=0)
        (learned,) = axis.plot(curve.z, curve.density, color=BLUE, lw=1.2)
        (dashed,) = axis.plot(curve.z, curve.reference, color=ORANGE, lw=1.1, ls="--")
        place = ", ".join(f"{n}={i + 1}" for n, i in zip("qp", curve.place, strict=False))
        axis.set_title(f"{place}   KL {curve.departure:.2g}", fontsize=7.5, pad=3)
        axis.tick_params(labelsize=7)
        axis.set_xlim(*window)
    axes[0, 0].set_ylim(0, 1.06 * max(c.density.max() for c in curves))  # shared by all
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    shown, total = len(curves), math.prod(prior.shape)
    which = f"all {total}" if shown == total else f"the {shown} of {total} that moved most"
    figure.suptitle(f"Learned prior densities: {which}, by KL from the reference", fontsize=10)
    for axis in axes.flat[max(0, shown - columns) : shown]:  # the lowest of each column
        axis.set_xlabel("latent z", fontsize=8)
    figure.supylabel("density", fontsize=9)
    reference = {"none": "flat (no reference)"}.get(prior.reference, prior.reference)
    figure.legend(
        [learned, dashed],
        [
            f"learned $p_{{{'q,p' if len(prior.shape) == 2 else 'q'}}}(z)$",
            rf"reference $\pi_0(z)$: {reference}",
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path)
    return curves


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
    figure, axes = _figure(7.2, 2.4 * math.ceil(len(panels) / 2), math.ceil(len(panels) / 2), 2)
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
