"""Cost of the thermodynamic criterion: time over N_t and over Langevin steps, and memory."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .measure import draw_medians, interleaved
from .training import preset, render, updater

TEMPERATURES = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
STEPS = (10, 20, 40)
_MEMORY = """
from kaem.bench.training import preset, updater
from kaem.training.dry_run import peak_memory
call = updater(preset("svhn-thermo"))
call()
print(peak_memory())
"""

__all__ = ["render", "run"]


def run(options: argparse.Namespace) -> dict[str, Any]:
    # A short chain: every variant has the same number of steps, and the ratios are what counts.
    short = {"steps": options.steps}
    variants: dict[str, Any] = {"single": updater(preset("svhn", posterior=short))}
    for n in TEMPERATURES:
        settings = short | {"temperatures": n}
        variants[f"temperatures_{n}"] = updater(preset("svhn-thermo", posterior=settings))
    for steps in STEPS:
        variants[f"steps_{steps}"] = updater(preset("svhn", posterior={"steps": steps}))
    details = interleaved(variants, options.repeats, least=1.0)
    median = {name: entry["median"] for name, entry in details.items()}
    times = np.array([median[f"temperatures_{n}"] for n in TEMPERATURES])
    slope, intercept = np.polyfit(TEMPERATURES, times, 1)
    fitted = intercept + slope * np.array(TEMPERATURES)
    results = {
        "thermo10_over_single": median["temperatures_10"] / median["single"],
        "thermo10_over_thermo1": median["temperatures_10"] / median["temperatures_1"],
        "linear_in_temperatures_r2": float(1 - np.var(times - fitted) / np.var(times)),
        "steps40_over_steps10": median["steps_40"] / median["steps_10"],
        "steps_in_chains": options.steps,
        "memory_thermo10_gib": _memory() / 2**30,
    }
    if options.figure:
        _figure(details, Path(options.figure))
    return {"benchmark": "temperatures", "results": results, "details": details}


def _memory() -> float:
    """Peak memory of a process that makes one update of svhn-thermo, in bytes."""
    made = subprocess.run(
        [sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True, env=os.environ
    )
    return float(made.stdout)


def _figure(details: dict[str, Any], path: Path) -> None:
    from ..interpret.figures import BLUE, GREY, new_figure, save_figure

    figure, axes = new_figure(4.2, 3.0)
    axis = axes[0, 0]
    unit = details["single"]["median"]
    entries = [details[f"temperatures_{n}"] for n in TEMPERATURES]
    axis.plot([0, 20], [0, 20], color=GREY, ls=":", lw=1, label="in proportion")
    draw_medians(axis, TEMPERATURES, entries, unit, color=BLUE, label="thermodynamic")
    axis.set_xlabel("power posteriors $N_t$")
    axis.set_ylabel("update time / maximum likelihood's", fontsize=9)
    axis.set_title("SVHN: medians and quartiles", fontsize=9)
    axis.set_xlim(0, 21)
    axis.set_ylim(0, None)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.25, lw=0.5)
    save_figure(figure, path)
