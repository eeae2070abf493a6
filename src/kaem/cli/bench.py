"""`kaem bench NAME`: measurements, as one JSON object with flat `results` and full `details`."""

import argparse
import importlib
from typing import Any

BENCHMARKS = {
    "exactness": "the inverse transform against adaptive quadrature",
    "importance": "an importance-sampled update against a plain autoencoder's",
}


def configure(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    exactness = names.add_parser("exactness", help=BENCHMARKS["exactness"])
    exactness.add_argument(
        "--run", metavar="RUN", help="a trained run (default: train a small one)"
    )
    importance = names.add_parser("importance", help=BENCHMARKS["importance"])
    importance.add_argument("--repeats", type=int, default=20, metavar="N")


def run(options: argparse.Namespace) -> dict[str, Any]:
    module = importlib.import_module(f"kaem.bench.{options.name}")
    result = module.run(options)
    if not options.json:
        print(module.render(result))
    return result
