"""`kaem export RUN --to TARGET`: a model as tables, C, HLS, Verilog or ONNX."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .options import FLAG, MODEL, NUMBER, OUTPUT, checked_folder

# What the command line calls the settings of targets, and what a flag without a number stands for.
_FLAGS: dict[str, tuple[str, Any, str]] = {
    "entries": ("--entries", None, "of a table, a power of two (1024)"),
    "bits": ("--bits", None, "of a table's words, 4 to 16 (16)"),
    "interpolate": ("--nearest", False, "read tables to the nearest entry, not linearly"),
    "addressing": ("--tails", "tails", "spend half of a table's entries on its tails"),
    "inner_bits": (
        "--inner-bits",
        None,
        "of inner Kolmogorov-Arnold layers (16); the last one, and convolutions, have 8",
    ),
    "generator": ("--generator", True, "of --to verilog: the generator too"),
}


def configure(parser: Any) -> None:
    add = parser.add_argument
    add("run", **MODEL)
    add("--to", required=True, metavar="TARGET", help="one of those listed below")
    add(*OUTPUT, metavar="DIR", help="default RUN/export/TARGET")
    add("--verify", **FLAG, help="compile and run it, and compare")
    add("--name", default="kaem", help="prefix of files and functions (kaem)")
    for setting, (flag, value, about) in _FLAGS.items():
        how = NUMBER if value is None else {"action": "store_const", "const": value}
        # Absent unless given: a target then has its own default, or refuses what it does not take.
        add(flag, dest=setting, default=argparse.SUPPRESS, help=about, **how)
    parser.more.append(_targets)


def _targets() -> str:
    from ..export import TARGETS

    return "\n".join(["targets:", *(f"  {n:10}{target.summary}" for n, target in TARGETS.items())])


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..export import export, find, usual_folder

    settings = {name: value for name, value in vars(options).items() if name in _FLAGS}
    find(options.to, settings, {name: flag for name, (flag, _, _) in _FLAGS.items()})
    source = Path(options.run)
    folder = Path(options.output) if options.output else usual_folder(source, options.to)

    def show(found: dict[str, Any]) -> None:
        results = found["results"]
        if not options.json:
            if results["verification"] is None:
                print(f"wrote {len(found['files'])} files into {folder}")
                _show({key: results[key] for key in ("note",) if key in results})
            _show(results["verification"] or results.get("quality", {}))
        if options.verify and results["verification"] is None:
            print("verifying: compiling and running what was written", file=sys.stderr)

    settings |= {"verify": options.verify, "name": options.name, "report": show}
    return export(source, options.to, checked_folder(folder), **settings)


def _show(values: dict[str, Any], prefix: str = "") -> None:
    """Print one line for each number."""
    for name, value in values.items():
        if isinstance(value, dict):
            _show(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            print(f"{prefix}{name} = {f'{value:.5g}' if isinstance(value, float) else value}")
