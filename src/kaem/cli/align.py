"""`kaem align RUN --out NEW`: the prior refitted to where the posterior is."""

import argparse
from typing import Any

from .options import NUMBER, RUN, SEED
from .progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", **RUN)
    add("--out", metavar="NEW", required=True, help="the folder of the new run")
    add("--examples", **NUMBER, help="of the training data (all by an encoder, else 2000)")
    add("--data", metavar="PATH", help="where the run's data are now")
    add("--seed", **SEED)


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..runs.aligning import align

    found = align(
        options.run,
        options.out,
        examples=options.examples,
        data=options.data,
        seed=options.seed,
        say=say,
    )
    before, after = found.log_prior_before, found.log_prior_after
    if not options.json:
        was = "" if before is None else f"{before:.2f} nats before, "
        print(f"log-prior of held-out latents: {was}{after:.2f} nats aligned")
        print(f"wrote {found.run.path}")
    return {
        "out": str(found.run.path),
        "examples": found.examples,
        "log_prior_before": before,
        "log_prior_after": after,
    }
