"""`kaem plot RUN FIGURE...`: what a run learned, and how."""

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError

FIGURES = (
    "densities",
    "traversal",
    "interpolation",
    "influence",
    "power-posteriors",
    "temperatures",
    "reconstructions",
    "evolution",
    "training",
)
FORMATS = ("png", "svg", "gif", "webp")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("figures", metavar="FIGURE", nargs="+", help=", ".join(FIGURES))
    parser.add_argument("-o", "--output", metavar="DIR", help="default RUN/figures")
    parser.add_argument(
        "--format", choices=FORMATS, help="png (default) or svg; of evolution, gif or webp"
    )
    parser.add_argument("--count", type=int, metavar="N", help="how many coordinates or examples")
    parser.add_argument("--points", type=int, metavar="N", help="images in a strip or on a path")
    parser.add_argument(
        "--latent", metavar="Q[,P]", action="append", default=[],
        help="a coordinate to show, counted from 1, instead of the most influential; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--between", choices=("samples", "data", "modes"), default="samples",
        help="the ends of an interpolation (default samples)",
    )  # fmt: skip
    parser.add_argument(
        "--example", metavar="N", type=int, action="append", default=[],
        help="which of the data, counted from 0; may be repeated",
    )  # fmt: skip
    parser.add_argument("--data", metavar="PATH", help="data instead of the run's own")
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="of the data (default train)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of draws and chains")


def _place(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) - 1 for part in text.split(","))
    except ValueError:
        raise UserError(f"--latent takes Q or Q,P such as 3,1, got {text!r}.") from None


def _suffix(figure: str, wanted: str | None) -> str:
    """Of the file: evolution moves, the others do not."""
    fitting = FORMATS[2:] if figure == "evolution" else FORMATS[:2]
    return wanted if wanted in fitting else fitting[0]


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures = [name for text in options.figures for name in text.split(",") if name]
    unknown = [name for name in figures if name not in FIGURES]
    if unknown:
        raise UserError(f"unknown figure {unknown[0]!r}; choose from {', '.join(FIGURES)}.")
    if options.format and all(_suffix(name, options.format) != options.format for name in figures):
        raise UserError(
            f"--format {options.format} is not for {', '.join(figures)}: evolution is a gif or webp, "
            "all other figures are png or svg."
        )
    for name, least in (("count", 1), ("points", 2)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name} must be at least {least}, got {value}.")
    places = tuple(_place(text) for text in options.latent)

    from ..interpret import gallery
    from ..training.run import Run

    this = gallery.Gallery(Run.open(options.run), options.seed, options.data, options.split)
    choices = gallery.Choices(
        options.count, options.points, places, options.between, tuple(options.example)
    )
    folder = Path(options.output) if options.output else this.run.figures
    written = []
    for name in figures:
        path = folder / f"{name}.{_suffix(name, options.format)}"
        gallery.FIGURES[name](this, path, choices)
        written.append(str(path))
        if not options.json:
            print(f"wrote {path}")
    return {"files": written}
