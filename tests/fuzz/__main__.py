"""`python -m fuzz [TARGET ...] [--cases N] [--seed S] [--one FILE]`."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .driver import ROOT, fuzz
from .targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all if none is given")
    parser.add_argument("--cases", type=int, default=10_000, help="mutations of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--one", type=Path, help="open this file, with a traceback if it fails")
    options = parser.parse_args()
    if options.one:
        target = TARGETS[options.targets[0]]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / target.file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(options.one, place)
            print(target.open(place))
        return 0
    problems = []
    for name in options.targets or TARGETS:
        started = time.monotonic()
        result = fuzz(name, options.cases, options.out / name, options.seed)
        counts = ", ".join(f"{n} {what}" for what, n in sorted(result.counts.items()))
        seconds = time.monotonic() - started
        print(f"{name}: {counts}; {seconds:.0f} s, at most {result.megabytes} MB", flush=True)
        for problem in result.problems:
            print(f"  {problem}", flush=True)
        problems += result.problems
    return 1 if problems else 0


sys.exit(main())
