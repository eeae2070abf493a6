"""`kaem compare RUN RUN ...`: runs side by side, on one page and in one JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="two or more run folders")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="comparison.html", help="default comparison.html"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="turns (default 5)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the samples")


def run(options: argparse.Namespace) -> dict[str, Any]:
    output = Path(options.output)
    if output.suffix != ".html":
        raise UserError(f"-o takes a .html file, beside which a .json is written, got {output}.")
    if len(options.runs) < 2:
        raise UserError("compare takes at least two runs, got one; give another run folder.")
    if options.repeats < 1 or options.seed < 0:
        raise UserError(
            f"--repeats must be at least 1 and --seed not negative, got {options.repeats} and "
            f"{options.seed}."
        )

    from ..bench.compare import compare, markdown, write_page
    from ..files import write_atomically

    print(f"measuring {len(options.runs)} runs in turns; compiling first", file=sys.stderr)
    result = compare(options.runs, options.repeats, seed=options.seed)
    write_page(result, output)
    for entry in result["runs"].values():
        entry.pop("samples", None)
    beside = output.with_suffix(".json")
    write_atomically(beside, json.dumps(result, indent=2).encode())
    if not options.json:
        print(f"{markdown(result)}\n\nwrote {output} and {beside}")
    return result | {"files": [str(output), str(beside)]}
