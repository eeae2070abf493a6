"""`kaem report RUN`: one self-contained HTML page about a run."""

import argparse
from pathlib import Path
from typing import Any

from .options import OUTPUT, RUN
from .progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", **RUN)
    parser.add_argument(*OUTPUT, metavar="FILE", help="default RUN/report.html")
    parser.add_argument("--data", metavar="PATH", help="data instead of the run's own")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..interpret.report import report
    from ..runs.folder import RunFolder

    output = Path(options.output) if options.output else None
    written = report(RunFolder.open(options.run), output, options.data, say)
    if not options.json:
        print(f"wrote {written[-1]}")
    return {"files": [str(path) for path in written]}
