"""Cost of the thermodynamic criterion: time over N_t and over Langevin steps, and memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..drawing import BLUE, GREY, new_figure, save_figure
from ..measuring import interleaved
from .training import draw_medians, one_update, render

TEMPERATURES = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
STEPS = (10, 20, 40)
_MEMORY = """
from kaem.bench.training import one_update
from kaem.runs.planning import peak_memory
one_update("svhn-paper-thermo")()
print(peak_memory())
"""

__all__ = ["draw", "render", "run"]


def run(repeats: int = 7, steps: int = 10) -> dict[str, Any]:
    """Time updates in turns, with chains of so many `steps`."""
    # A short chain: every variant has the same number of steps, and the ratios are what counts.
    short = {"steps": steps}
    variants: dict[str, Any] = {"single": one_update("svhn-paper", learner=short)}
    for n in TEMPERATURES:
        settings = short | {"temperatures": n}
        variants[f"temperatures_{n}"] = one_update("svhn-paper-thermo", learner=settings)
    for length in STEPS:
        variants[f"steps_{length}"] = one_update("svhn-paper", learner={"steps": length})
    details = interleaved(variants, repeats, least=1.0)
    median = {name: entry["median"] for name, entry in details.items()}
    times = np.array([median[f"temperatures_{n}"] for n in TEMPERATURES])
    slope, intercept = np.polyfit(TEMPERATURES, times, 1)
    fitted = intercept + slope * np.array(TEMPERATURES)
    results = {
        "thermo10_over_single": median["temperatures_10"] / median["single"],
        "thermo10_over_thermo1": median["temperatures_10"] / median["temperatures_1"],
        "linear_in_temperatures_r2": float(1 - np.var(times - fitted) / np.var(times)),
        "steps40_over_steps10": median["steps_40"] / median["steps_10"],
        "steps_in_chains": steps,
        "memory_thermo10_gib": _memory() / 2**30,
    }
    return {"results": results, "details": details}


def _memory() -> float:
    """Return the peak memory of a process that makes one update of svhn-paper-thermo, in bytes."""
    made = subprocess.run(
        [sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True, env=os.environ
    )
    return float(made.stdout)


def draw(details: dict[str, Any], path: Path) -> None:
    """Draw the time of an update over the number of power posteriors."""
    figure, axes = new_figure(4.2, 3.0)
    axis = axes[0, 0]
    unit = details["single"]["median"]
    entries = [details[f"temperatures_{n}"] for n in TEMPERATURES]
    axis.plot([0, 20], [0, 20], color=GREY, ls=":", lw=1, label="in proportion")
    draw_medians(axis, TEMPERATURES, entries, unit, color=BLUE, label="thermodynamic")
    axis.set(xlabel="power posteriors $N_t$", xlim=(0, 21), ylim=(0, None))
    axis.set_ylabel("update time / maximum likelihood's", fontsize=9)
    axis.set_title("SVHN: medians and quartiles", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.25, lw=0.5)
    save_figure(figure, path)
