"""`kaem evaluate RUN` or `kaem evaluate REAL FAKE`: distances, likelihoods, diagnostics."""

import argparse
from typing import Any

from ..errors import UserError
from .options import FLAG, NUMBER, OUTPUT, SEED, list_in_help
from .progress import Counter, say

_WHAT = ("fid", "kid", "metrics", "split", "weights", "sizes", "seed")
_OF_A_RUN = (
    *("likelihood", "posterior", "gap", "data", "samples"),
    *("examples", "proposals", "temperatures", "steps", "target_error", "budget"),
)
_OF_SETS = {
    "output": "is for REAL and FAKE; a run keeps its metrics.json itself",
    "size": "is for REAL and FAKE; a run's data have the size it learned",
}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a run, or two sets of images: folders, arrays, datasets, or saved features [n, D]"
    add("what", metavar="RUN | REAL FAKE", nargs="+", help=what)
    add("--fid", **FLAG, help="FID, and its limit at infinity")
    add("--kid", **FLAG, help="KID, and its limit at infinity")
    add("--proxy", **FLAG, help="a cheap Frechet distance (what is done by default)")
    methods = "log p(x) and bits per dimension, by one of those below (importance)"
    add("--likelihood", metavar="METHOD", nargs="?", const="importance", help=methods)
    add("--posterior", **FLAG, help="how chains mix; active latents")
    add("--gap", **FLAG, help="where samples are lost: prior, marginals, aligned, reconstructions")
    any_of = "any of those below; may be given several times"
    add("--metric", dest="metrics", metavar="NAME", action="append", default=[], help=any_of)
    add("--samples", **NUMBER, help="to draw (20000 for FID and KID)")
    add("--examples", **NUMBER, help="for --likelihood and --posterior (100), --gap (10000)")
    add("--data", metavar="PATH", help="the reference, if not the run's own data")
    usual = "default: train for distances; test, if there is one, for the rest"
    add("--split", choices=("train", "test"), help=f"of the data ({usual})")
    add("--weights", metavar="FILE", help="of Inception: .pt, .pth or .npz")
    add("--sizes", metavar="N,N,...", help="to extrapolate from (default: tenths)")
    add("--proposals", **NUMBER, help="or chains, or particles")
    add("--temperatures", **NUMBER, help="of annealed likelihoods")
    add("--steps", **NUMBER, help="of chains")
    nats = "to reach for each example, by importance and ais (0.25)"
    add("--target-error", type=float, metavar="NATS", help=nats)
    add("--budget", **NUMBER, help="of passes of the generator for an example to reach it")
    add("--seed", **SEED)
    add("--size", **NUMBER, help="crop and resize REAL and FAKE first")
    add(*OUTPUT, metavar="FILE", help=".json for REAL and FAKE")
    list_in_help(parser, "metrics", _summaries)


def _summaries() -> dict[str, str]:
    from ..metrics import METRICS

    return {name: metric.help for name, metric in METRICS.items()}


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"--sizes takes whole numbers with commas, such as 2000,4000,8000, got {text!r}."
        ) from None


def run(options: argparse.Namespace) -> dict[str, Any]:
    pair = len(options.what) == 2
    if len(options.what) > 2:
        raise UserError(f"evaluate takes one run, or REAL and FAKE, got {len(options.what)} paths.")
    needs = "needs a model, but REAL and FAKE are two sets of data; give a run"
    for name, why in dict.fromkeys(_OF_A_RUN, needs).items() if pair else _OF_SETS.items():
        if getattr(options, name) not in (None, False):
            raise UserError(f"--{name.replace('_', '-')} {why}.")
    options.sizes = _sizes(options.sizes)
    names = (*_WHAT, *(_OF_SETS if pair else _OF_A_RUN))
    asked = {name: getattr(options, name) for name in names}
    asked |= {"proxy": options.proxy or None, "report": Counter(), "say": say}

    from ..metrics import compare_sets, evaluate
    from ..runs import RunFolder

    try:
        if pair:
            asked["split"] = options.split or "train"
            result = compare_sets(*options.what, **asked)
        else:
            result = evaluate(RunFolder.open(options.what[0]), **asked)
    except UserError:
        raise
    except KeyboardInterrupt:
        say("features that are done are kept: the same command goes on from there")
        raise
    except ValueError as error:  # what Python callers get for numbers that do not fit
        raise UserError(str(error)) from error
    if not options.json:
        _show(**result)
    return result


def _show(results: dict[str, float], details: dict[str, Any], files: list[str]) -> None:
    del results
    for name, entry in details.items():
        if entry["value"] is None:
            print(f"{name}: {entry['why']}")
            continue
        error = f" ± {entry['error']:.2g}" if entry.get("error") is not None else ""
        more = ""
        if "interval" in entry:
            low, high = entry["interval"]
            more = f"  (95 %: {low:.5g} to {high:.5g})"
        print(f"{name} = {entry['value']:.5g}{error}{more}")
    for why in dict.fromkeys(e["why"] for e in details.values() if e["value"] and "why" in e):
        print(f"note: {why}")
    if files:
        print(f"wrote {', '.join(files)}")
