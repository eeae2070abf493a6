"""`kaem plot RUN FIGURE...`: what a run learned, and how."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import checked_folder, seed

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
# Which options a figure heeds.
_USES = {
    "densities": {"count", "latent", "data", "split"},
    "traversal": {"count", "latent", "points", "example", "data", "split"},
    "interpolation": {"points", "between", "example", "data", "split"},
    "influence": {"count"},
    "power-posteriors": {"example", "data", "split"},
    "temperatures": {"count", "example", "data", "split"},
    "reconstructions": {"count", "example", "data", "split"},
    "evolution": set(),
    "training": set(),
}
_LIMITS = {"count": (1, 1000), "points": (2, 100)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "figures", metavar="FIGURE", nargs="+", help=f"{', '.join(FIGURES)}, or all that apply"
    )
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
        "--between", choices=("samples", "data", "modes"),
        help="the ends of an interpolation (default samples)",
    )  # fmt: skip
    parser.add_argument(
        "--example", metavar="N", type=int, action="append", default=[],
        help="which of the data, counted from 0; may be repeated",
    )  # fmt: skip
    parser.add_argument("--data", metavar="PATH", help="data instead of the run's own")
    parser.add_argument("--split", choices=("train", "test"), help="of the data (default train)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of draws and chains")


def _place(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) - 1 for part in text.split(","))
    except ValueError:
        raise UserError(f"--latent takes Q or Q,P such as 3,1, got {text!r}.") from None


def _suffix(figure: str, wanted: str | None) -> str:
    """Of the file: evolution moves, the others do not."""
    fitting = FORMATS[2:] if figure == "evolution" else FORMATS[:2]
    return wanted if wanted in fitting else fitting[0]


def _check(options: argparse.Namespace, figures: list[str]) -> None:
    """That numbers are within bounds, and that some figure heeds every option."""
    for name, (least, most) in _LIMITS.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise UserError(f"--{name} must be at least {least} and at most {most}, got {value}.")
    for option in ("count", "points", "latent", "between", "example", "data", "split"):
        if getattr(options, option) and not any(option in _USES[name] for name in figures):
            fitting = [name for name, uses in _USES.items() if option in uses]
            raise UserError(
                f"--{option} is for {', '.join(fitting)}; it would change nothing about "
                f"{', '.join(figures)}."
            )
    only = [name for name in figures if "example" in _USES[name]] == ["interpolation"]
    if options.example and only and options.between != "data":
        raise UserError(
            "--example is an end of an interpolation only with --between data; add that."
        )


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures = list(
        dict.fromkeys(name for text in options.figures for name in text.split(",") if name)
    )
    everything = figures == ["all"]
    if everything:
        figures = list(FIGURES)
    unknown = [name for name in figures if name not in FIGURES]
    if unknown or not figures:
        got = f"unknown figure {unknown[0]!r}" if unknown else "no figure was named"
        raise UserError(f"{got}; choose from {', '.join(FIGURES)}, or all.")
    _check(options, figures)
    if options.format and all(_suffix(name, options.format) != options.format for name in figures):
        raise UserError(
            f"--format {options.format} is not for {', '.join(figures)}: evolution is a gif or webp, "
            "all other figures are png or svg."
        )
    places = tuple(dict.fromkeys(_place(text) for text in options.latent))
    folder = checked_folder(Path(options.output)) if options.output else None

    from ..interpret import gallery
    from ..training.run import Run

    split: Any = options.split or "train"
    this = gallery.Gallery(Run.open(options.run), options.seed, options.data, split)
    if folder is None:
        this.run.check_folders()
    choices = gallery.Choices(
        options.count, options.points, places, options.between or "samples", tuple(options.example)
    )
    written = []
    for name in figures:
        path = (folder or this.run.figures) / f"{name}.{_suffix(name, options.format)}"
        try:
            gallery.FIGURES[name](this, path, choices)
        except UserError as error:
            if not everything:
                raise
            print(f"no {name}: {error}", file=sys.stderr)
            continue
        written.append(str(path))
        if not options.json:
            print(f"wrote {path}")
    return {"files": written}
