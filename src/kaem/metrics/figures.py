"""Figures of an evaluation: extrapolations, log-likelihoods, and what the posterior says."""

from pathlib import Path
from typing import Any

import numpy as np

from ..drawing import BLUE, GREY, ORANGE, new_figure, save_figure


def extrapolations(details: dict[str, Any], path: Path) -> bool:
    """Draw distances over 1/N, the fitted curve, and its limit with its interval; False if there are none."""
    names = [
        name for name in ("fid_infinity", "kid_infinity") if details.get(name, {}).get("sizes")
    ]
    if not names:
        return False
    figure, axes = new_figure(3.6 * len(names), 3.0, columns=len(names))
    for axis, name in zip(axes[0], names, strict=True):
        entry = details[name]
        sizes = np.array(entry["sizes"])
        axis.plot(1 / sizes, entry["values"], "o", ms=4, color=BLUE, label="subsets of N samples")
        x = np.linspace(0, 1 / sizes[0], 200)
        axis.plot(x, np.polynomial.polynomial.polyval(x, entry["coefficients"]), color=GREY, lw=1)
        low, high = entry["interval"]
        axis.errorbar(
            0, entry["value"], [[entry["value"] - low], [high - entry["value"]]],
            fmt="s", ms=5, capsize=4, color=ORANGE, label="limit, 95 % interval",
        )  # fmt: skip
        label = name.split("_")[0].upper()
        axis.set(xlabel="1/N", ylabel=label)
        axis.set_title(
            f"{label} at infinity: {entry['value']:.4g} ± {entry['error']:.2g}", fontsize=9
        )
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.grid(alpha=0.25, lw=0.5)
        axis.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
    return True


def likelihoods(values: np.ndarray, method: str, path: Path) -> None:
    """Draw the log-likelihoods of all examples."""
    figure, axes = new_figure(4.2, 2.8)
    axis = axes[0, 0]
    axis.hist(values, bins=min(40, max(5, len(values) // 4)), color=BLUE)
    axis.axvline(float(np.mean(values)), color=ORANGE, lw=1.5, label=f"mean {np.mean(values):,.1f}")
    axis.set(xlabel="log p(x), nats", ylabel="examples")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_title(f"Log-likelihood of {len(values)} examples by {method}", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def latents(found: dict[str, Any], path: Path) -> None:
    """Draw, for each latent, what the data say about it, and how far its aggregated posterior is from the prior."""
    information, mismatch = (np.ravel(found[name]) for name in ("information", "mismatch"))
    errors = np.ravel(found["mismatch_error"])
    order = np.argsort(-information)
    place = np.arange(1, len(order) + 1)
    figure, axes = new_figure(5.2, 3.0)
    axis = axes[0, 0]
    axis.plot(place, information[order], "o", ms=3, color=BLUE, label="information: mean KL(p(z|x) || p(z))")  # fmt: skip
    known = np.isfinite(errors[order])
    if known.any():
        axis.errorbar(
            place[known], mismatch[order][known], errors[order][known],
            fmt="s", ms=3, lw=0.8, color=ORANGE, label="mismatch: KL(mean p(z|x) || p(z))",
        )  # fmt: skip
    if not known.all():
        axis.plot(
            place[~known], mismatch[order][~known], "s", ms=3, mfc="none", color=ORANGE,
            label="mismatch, of chains that are stuck",
        )  # fmt: skip
    axis.set_ylim(min(0, mismatch.min()) - 0.05, None)
    axis.axhline(0.1, color=GREY, ls="--", lw=0.8, label="active above 0.1 nats")
    axis.set(xlabel="latents, ranked by information", ylabel="nats")
    axis.set_title(f"{found['active_coordinates']} of {len(order)} latents are active", fontsize=9)
    axis.grid(alpha=0.25, lw=0.5)
    axis.legend(frameon=False, fontsize=7)
    save_figure(figure, path)


def gap(distances: dict[str, float], kind: str, path: Path) -> None:
    """Draw what one generator makes of several laws of the latents, as distances to data."""
    labels = {
        "prior": "draws of the prior",
        "marginals": "marginals of the posterior",
        "gaussian": "Gaussian",
        "aligned": "aligned marginals",
        "posterior": "posterior: reconstructions",
        "data": "data itself",
    }
    figure, axes = new_figure(5.2, 2.6)
    axis, names = axes[0, 0], list(distances)[::-1]
    colours = [ORANGE if n == "prior" else GREY if n == "data" else BLUE for n in names]
    bars = axis.barh([labels[name] for name in names], [distances[n] for n in names], color=colours)
    axis.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
    axis.set_xlim(0, 1.2 * max(distances.values()))
    axis.set(xlabel=f"{kind} to held-out data (lower is better)")
    axis.set_title("One generator, several laws of its latents", fontsize=9)
    save_figure(figure, path)
