"""`kaem plot RUN densities|training`: figures of a run."""

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError

FIGURES = ("densities", "training")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("figures", metavar="FIGURE", nargs="+", help=", ".join(FIGURES))
    parser.add_argument("-o", "--output", metavar="DIR", help="default RUN/figures")
    parser.add_argument("--format", choices=("png", "svg"), default="png")
    parser.add_argument(
        "--count", type=int, default=24, metavar="N", help="coordinates on a density sheet"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures = [name for text in options.figures for name in text.split(",") if name]
    unknown = [name for name in figures if name not in FIGURES]
    if unknown:
        raise UserError(f"unknown figure {unknown[0]!r}; choose from {', '.join(FIGURES)}.")
    if options.count < 1:
        raise UserError(f"--count must be at least 1, got {options.count}.")

    from ..interpret.figures import density_sheet, training_curves
    from ..model import KAEM
    from ..serialisation import load
    from ..training.run import Run

    this = Run.open(options.run)
    folder = Path(options.output) if options.output else this.figures
    written = []
    for name in figures:
        path = folder / f"{name}.{options.format}"
        if name == "densities":
            model = load(this.model_file)
            if not isinstance(model, KAEM):
                raise UserError(
                    f"{this.path} holds a {type(model).__name__}, which has no learned one-dimensional "
                    "densities to draw; `kaem plot RUN training` works for every run."
                )
            density_sheet(model.prior, path, options.count)
        else:
            training_curves(this.history(), path)
        written.append(str(path))
        if not options.json:
            print(f"wrote {path}")
    return {"files": written}
