"""`kaem compare RUN RUN ...`: runs side by side, on one page and in one JSON."""

import argparse
from typing import Any

from .options import NUMBER, OUTPUT
from .progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    add, page = parser.add_argument, "comparison.html"
    add("runs", metavar="RUN", nargs="+", help="two or more run folders")
    add(*OUTPUT, metavar="FILE", default=page, help=f"default {page}")
    add("--repeats", **NUMBER, default=5, help="turns (default 5)")
    add("--seed", **NUMBER, default=0, help="of the samples")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..runs.comparing import compare, markdown

    asked = {name: getattr(options, name) for name in ("repeats", "seed", "output")}
    result = compare(options.runs, **asked, say=say)
    if not options.json:
        print(f"{markdown(result)}\n\nwrote {' and '.join(result['files'])}")
    return result
