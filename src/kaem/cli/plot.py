"""`kaem plot RUN FIGURE...`: what a run learned, and how."""

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import NUMBER, OUTPUT, RUN, SEED, checked_folder, wrote
from .progress import say


def configure(parser: Any) -> None:
    add = parser.add_argument
    add("run", **RUN)
    add("figures", metavar="FIGURE", nargs="+", help="some of those below, or all that apply")
    add(*OUTPUT, metavar="DIR", help="default RUN/figures")
    add("--format", metavar="SUFFIX", help="of the files, where a figure has it; see below")
    add("--count", **NUMBER, help="how many coordinates or examples")
    add("--points", **NUMBER, help="images in a strip or on a path")
    many: dict[str, Any] = {"action": "append", "default": []}
    instead = "counted from 1, instead of the most influential; may be repeated"
    add("--latent", metavar="Q[,P]", **many, help=f"a coordinate to show, {instead}")
    ends = {"choices": ("samples", "data", "modes"), "default": "samples"}
    add("--between", **ends, help="the ends of an interpolation (default samples)")
    add("--example", **NUMBER, **many, help="which of the data, counted from 0; may be repeated")
    add("--data", metavar="PATH", help="data instead of the run's own")
    part = {"choices": ("train", "test"), "default": "train"}
    add("--split", **part, help="of the data (default train)")
    add("--seed", **SEED, help="of draws and chains")
    parser.more.append(_figures)


def _figures() -> str:
    """Return the figures there are: what each shows, its formats, and the options that change it."""
    from ..interpret.figures import FIGURES

    lines = ["figures:"]
    for name, figure in FIGURES.items():
        options = " ".join(f"--{option}" for option in figure.options)
        lines.append(f"  {name:<17} {figure.about}")
        lines.append(f"  {'':<17} {', '.join(figure.formats)}{options and '; heeds ' + options}")
    return "\n".join(lines)


def _place(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) - 1 for part in text.split(","))
    except ValueError:
        raise UserError(f"--latent takes Q or Q,P such as 3,1, got {text!r}.") from None


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..interpret.plotting import plot
    from ..runs.folder import RunFolder

    same = ("format", "count", "points", "between", "data", "split", "seed")
    asked = {name: getattr(options, name) for name in same}
    asked |= {"latents": [_place(text) for text in options.latent], "examples": options.example}
    folder = checked_folder(Path(options.output)) if options.output else None
    run = RunFolder.open(options.run)
    return wrote(options, plot(run, options.figures, folder=folder, say=say, **asked))
