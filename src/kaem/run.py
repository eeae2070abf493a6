"""A run, with everything that can be done with one: each method is one function of a room below."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .export import export
from .interpret.closed_forms import Symbolic, symbolic
from .interpret.plotting import plot
from .interpret.report import report
from .metrics import evaluate
from .runs import RunFolder, align, sample


class Run(RunFolder):
    """A run folder that `kaem.train` or `kaem train` made."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open the run at `path`, or say what is missing."""
        super().__init__(RunFolder.open(path).path)

    def sample(self, n: int = 64, **options: Any) -> np.ndarray:
        """Draw `n` samples [n, *data_shape]; see `kaem.sample`."""
        return sample(self.path, n, **options)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """Measure the model, and keep what was found in `metrics.json`; see `kaem.evaluate`."""
        return evaluate(self, **options)

    def align(self, out: str | PathLike[str], **options: Any) -> "Run":
        """Write a run whose prior is where the posterior is, folded into the generator; see `kaem.align`."""
        return Run(align(self.path, out, **options).run.path)

    def plot(self, *figures: str | Sequence[str], **options: Any) -> list[Path]:
        """Draw figures by name, by default all that apply; see `kaem.plot`."""
        names = [name for one in figures for name in ([one] if isinstance(one, str) else one)]
        return plot(self, names or "all", **options)

    def symbolic(self, **options: Any) -> Symbolic:
        """Find closed forms of the learned densities; see `kaem.symbolic`."""
        return symbolic(self.path, **options)

    def report(self, **options: Any) -> list[Path]:
        """Write one page about the run; see `kaem.report`."""
        return report(self, **options)

    def export(self, target: str, folder: str | PathLike[str] | None = None, **options: Any) -> Any:
        """Write the model for a `target`, such as `c`; see `kaem.export`."""
        return export(self, target, folder, **options)
