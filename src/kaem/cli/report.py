"""`kaem report RUN`: one self-contained HTML page about a run."""

import argparse
from pathlib import Path
from typing import Any

from .progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="default RUN/report.html")
    parser.add_argument("--data", metavar="PATH", help="data instead of the run's own")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..interpret.report import finish
    from ..training.run import Run

    output = Path(options.output) if options.output else None
    written = finish(Run.open(options.run), say, output=output, source=options.data)
    if not options.json:
        print(f"wrote {written[-1]}")
    return {"files": [str(path) for path in written]}
