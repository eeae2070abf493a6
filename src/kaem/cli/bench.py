"""`kaem bench NAME`: measurements, as one JSON object with flat `results` and full `details`."""

import argparse
from typing import Any

from ..bench import BENCHMARKS, bench, render


def configure(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, (_, summary, options) in BENCHMARKS.items():
        one = names.add_parser(name, help=summary)
        for option, settings in options.items():
            one.add_argument(f"--{option}", **settings)


def run(options: argparse.Namespace) -> dict[str, Any]:
    given = {option: getattr(options, option) for option in BENCHMARKS[options.name].options}
    result = bench(options.name, **given)
    if not options.json:
        print(render(result))
    return result
