"""`kaem bench NAME`: measurements, as one JSON object with flat `results` and full `details`."""

import argparse
import importlib
from typing import Any

BENCHMARKS = {
    "exactness": "the inverse transform against adaptive quadrature",
    "importance": "an importance-sampled update against a plain autoencoder's",
    "training": "a Langevin update against a plain formulation and the machine's peak, and over Q",
    "sampling": "time to draw images: KAEM in three ways, VAE, neural EBM, DDPM",
    "temperatures": "a thermodynamic update over the number of power posteriors, and its memory",
}


def configure(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    exactness = names.add_parser("exactness", help=BENCHMARKS["exactness"])
    exactness.add_argument(
        "--run", metavar="RUN", help="a trained run (default: train a small one)"
    )
    importance = names.add_parser("importance", help=BENCHMARKS["importance"])
    importance.add_argument("--repeats", type=int, default=20, metavar="N")
    for name in ("training", "temperatures", "sampling"):
        timed = names.add_parser(name, help=BENCHMARKS[name])
        timed.add_argument("--repeats", type=int, default=7, metavar="N", help="turns (default 7)")
        timed.add_argument("--figure", metavar="FILE", help="also draw it, as .png or .svg")
        if name == "temperatures":
            timed.add_argument("--steps", type=int, default=10, metavar="N", help="of each chain")


def run(options: argparse.Namespace) -> dict[str, Any]:
    module = importlib.import_module(f"kaem.bench.{options.name}")
    result = module.run(options)
    if not options.json:
        print(module.render(result))
    return result
