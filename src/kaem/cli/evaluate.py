"""`kaem evaluate RUN` or `kaem evaluate REAL FAKE`: distances, likelihoods, diagnostics."""

import argparse
import json
import os
import sys
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import seed
from .progress import Counter, say

# What is advised for a run's data, and what takes its place for REAL and FAKE.
_SETTINGS = {
    "--set data.size=none": "no --size",
    "--set data.size=N": "--size N",
    ", or take fewer with `--set data.limit=N`": "",
    "which to use with --set data.key=NAME": "which to use by naming it x",
}
METHODS = ("importance", "trapezoid", "corrected", "steppingstone", "ais")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="RUN | REAL FAKE", nargs="+",
        help="a run, or two sets of images: folders, arrays, datasets, or saved features [n, D]",
    )  # fmt: skip
    parser.add_argument("--fid", action="store_true", help="FID, and its limit at infinity")
    parser.add_argument("--kid", action="store_true", help="KID, and its limit at infinity")
    parser.add_argument(
        "--proxy", action="store_true", help="a cheap Frechet distance (what is done by default)"
    )
    parser.add_argument("--likelihood", choices=METHODS, help="log p(x) and bits per dimension")
    parser.add_argument("--posterior", action="store_true", help="how chains mix; active latents")
    parser.add_argument("--samples", type=int, metavar="N", help="to draw (20000 for FID and KID)")
    parser.add_argument(
        "--examples", type=int, metavar="N", help="for --likelihood and --posterior (100)"
    )
    parser.add_argument("--data", metavar="PATH", help="the reference, if not the run's own data")
    parser.add_argument(
        "--split", choices=("train", "test"),
        help="of the data (default: train for distances; test, if there is one, for the rest)",
    )  # fmt: skip
    parser.add_argument("--weights", metavar="FILE", help="of Inception: .pt, .pth or .npz")
    parser.add_argument("--sizes", metavar="N,N,...", help="to extrapolate from (default: tenths)")
    parser.add_argument("--proposals", type=int, metavar="N", help="or chains, or particles")
    parser.add_argument("--temperatures", type=int, metavar="N", help="of annealed likelihoods")
    parser.add_argument("--steps", type=int, metavar="N", help="of chains")
    parser.add_argument("--seed", type=seed, default=0, metavar="N")
    parser.add_argument("--size", type=int, metavar="N", help="crop and resize REAL and FAKE first")
    parser.add_argument("-o", "--output", metavar="FILE", help=".json for REAL and FAKE")


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"--sizes takes whole numbers with commas, such as 2000,4000,8000, got {text!r}."
        ) from None


def _refuse(options: argparse.Namespace, names: str, unless: bool, why: str) -> None:
    """Raise if any of the options was given in vain."""
    given = [name for name in names.split() if getattr(options, name)]
    if given and not unless:
        raise UserError(f"--{given[0]} {why}.")


def _checked(options: argparse.Namespace) -> None:
    if len(options.what) > 2:
        raise UserError(f"evaluate takes one run, or REAL and FAKE, got {len(options.what)} paths.")
    for name in ("samples", "examples", "proposals", "temperatures", "steps", "size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, got {value}.")
    if options.output and Path(options.output).suffix != ".json":
        raise UserError(f"-o takes a .json file, got {options.output}.")
    pair, inception = len(options.what) == 2, options.fid or options.kid
    latents = bool(options.likelihood) or options.posterior
    options.proxy = options.proxy or not (inception or latents)
    needs = "needs a model, but REAL and FAKE are two sets of data; give a run"
    _refuse(options, "likelihood posterior data samples", not pair, needs)
    _refuse(options, "output", pair, "is for REAL and FAKE; a run keeps its metrics.json itself")
    _refuse(options, "size", pair, "is for REAL and FAKE; a run's data have the size it learned")
    _refuse(options, "weights sizes", inception, "is for --fid and --kid; add one of them")
    _refuse(options, "samples", inception or options.proxy, "is for --fid, --kid and --proxy")
    _refuse(options, "proposals temperatures", bool(options.likelihood), "is for --likelihood")
    _refuse(options, "examples steps", latents, "is for --likelihood and --posterior")


def run(options: argparse.Namespace) -> dict[str, Any]:
    _checked(options)
    sizes = _sizes(options.sizes)

    from ..metrics.evaluation import flat

    try:
        details, files = (_pair if len(options.what) == 2 else _run)(options, sizes)
    except UserError:
        raise
    except KeyboardInterrupt:
        print(
            "features that are done are kept: the same command goes on from there", file=sys.stderr
        )
        raise
    except ValueError as error:  # what Python callers get for numbers that do not fit
        raise UserError(str(error)) from error
    if not options.json:
        _show(details, files)
    return {"results": flat(details), "details": details, "files": files}


def _show(details: dict[str, Any], files: list[str]) -> None:
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


def _extractor(options: argparse.Namespace) -> Any:
    """Inception, found and checked before anything long begins; None if nobody asked for it."""
    if not (options.fid or options.kid):
        return None
    from ..metrics.features import Extractor
    from ..metrics.weights import KNOWN

    found = Extractor(options.weights)
    if found.sha256 not in KNOWN:
        print(
            f"note: {found.path} has the right shapes but is no published file of these weights; its "
            "numbers compare with numbers from the same file only",
            file=sys.stderr,
        )
    return found


def _distances(options: argparse.Namespace, sizes: Any, real: Any, fake: Any, **more: Any) -> Any:
    from ..cache import cache_folder
    from ..metrics.evaluation import distances

    return distances(
        real,
        fake,
        fid=options.fid,
        kid=options.kid,
        proxy=options.proxy,
        sizes=sizes,
        seed=options.seed,
        cache=cache_folder() / "features",
        **more,
    )


def _pair(options: argparse.Namespace, sizes: Any) -> tuple[dict[str, Any], list[str]]:
    from ..data import load
    from ..files import write_atomically
    from ..interpret import evaluation as figures
    from ..metrics.evaluation import flat, versions

    for source in options.what:
        if (Path(source) / "config.json").is_file():
            raise UserError(
                f"{source} is a run, not a set of images. Evaluate runs one by one, put them side by side "
                "with `kaem compare`, or draw from one with `kaem sample RUN -o FILE.npz`."
            )
    if options.output and not Path(options.output).absolute().parent.is_dir():
        raise UserError(
            f"there is no folder for {options.output}; make it, or choose another file."
        )
    split: Any = options.split or "train"
    try:
        real, fake = (
            load(source, split=split, size=options.size, mixed=options.size is not None, say=say)
            for source in options.what
        )
    except UserError as error:  # settings of a run are options here
        message = str(error)
        for setting, option in _SETTINGS.items():
            message = message.replace(setting, option)
        raise UserError(message) from error
    features = real.ndim == 2 and fake.ndim == 2
    details = _distances(
        options,
        sizes,
        real,
        fake,
        report=Counter(),
        extractor=None if features else _extractor(options),
    )
    for entry in details.values():
        entry["versions"] = versions()
        for name, source in zip(("reference", "generated"), options.what, strict=True):
            entry[name] = entry[name] | {"source": source, "split": split, "size": options.size}
    if not options.output:
        return details, []
    content = {"results": flat(details), "details": details}
    write_atomically(Path(options.output), json.dumps(content, indent=2).encode())
    beside = Path(options.output).with_suffix(".png")
    drawn = figures.extrapolations(details, beside)
    return details, [options.output, *([str(beside)] if drawn else [])]


def _run(options: argparse.Namespace, sizes: Any) -> tuple[dict[str, Any], list[str]]:
    from ..files import digest, sha256, write_atomically
    from ..interpret import evaluation as figures
    from ..metrics import evaluation
    from ..metrics.diagnostics import comparable
    from ..metrics.likelihood import resolved
    from ..serialisation import load
    from ..training.run import Run, evaluation_data

    this = Run.open(options.what[0])
    this.check_folders()
    model, config, report = load(this.path), this.config(), Counter()
    effort = {
        "samples": options.proposals,
        "temperatures": options.temperatures,
        "steps": options.steps,
    }
    # What cannot be done is said before anything long is done.
    if options.likelihood:
        resolved(model, options.likelihood, **effort)
    if options.posterior:
        comparable(model)
    inception = options.fid or options.kid
    if inception and model.data_shape[2:] != (3,):
        raise UserError(
            f"{this.path} makes data of shape {model.data_shape}, expected RGB images: Inception has seen "
            "colour photographs only, and its distances mean nothing for grey images or tables. Use "
            "the proxy: leave --fid and --kid out."
        )
    count = options.samples or (20_000 if inception else 5_000)
    if inception or options.proxy:
        evaluation.check_memory(model, count, inception=inception)
    extractor = _extractor(options)
    model_sha256 = sha256(this.model_file)
    everything: dict[str, Any] = {}
    files = [str(this.metrics_file)]

    def keep(details: dict[str, Any], set_: str, source: dict[str, Any]) -> None:
        """Write what was found at once: what follows may take hours, and fail."""
        for name, entry in details.items():
            facts = {"model_sha256": model_sha256, "versions": evaluation.versions()}
            everything[name] = entry | facts | {set_: entry[set_] | source}
        known = _known(this).items()
        kept = {n: e for n, e in known if e.get("model_sha256") == model_sha256}
        merged = kept | everything  # what an earlier model of the run did is not this one's
        content = {"results": evaluation.flat(merged), "details": merged}
        text = json.dumps(content, indent=2, allow_nan=False)
        write_atomically(this.metrics_file, text.encode())

    if inception or options.proxy:
        split: Any = options.split or "train"
        real = evaluation_data(config, options.data, split, say=say)
        if real.shape[1:] != model.data_shape:
            raise UserError(
                f"the run makes data of shape {model.data_shape}, but {options.data or config.data.name} "
                f"has shape {real.shape[1:]}; compare with data of the kind it was trained on."
            )
        fake = evaluation.drawn(model, count, options.seed, report)
        details = _distances(options, sizes, real, fake, report=report, extractor=extractor)
        trained_on = this.record()["data"]["sha256"] == digest(real)
        source = {"source": options.data or config.data.name, "split": split}
        keep(details, "reference", source | {"is_training_data": trained_on})
        path = this.figures / "extrapolation.png"
        if figures.extrapolations(details, path):
            files.append(str(path))
    if options.likelihood or options.posterior:
        x, split = _examples(options, config)
        where = {"source": options.data or config.data.name, "split": split}
    if options.likelihood:
        details, values = evaluation.likelihood(
            model, x, options.likelihood, seed=options.seed, report=report, **effort
        )
        keep(details, "examples", where)
        path = this.figures / f"likelihood-{options.likelihood}.png"
        figures.likelihoods(values, options.likelihood, path)
        files.append(str(path))
    if options.posterior:
        settings = {} if options.steps is None else {"steps": options.steps}
        details, found = evaluation.posterior(model, x, seed=options.seed, **settings)
        keep(details, "examples", where)
        path = this.figures / "latents.png"
        figures.latents(found, path)
        files.append(str(path))
    return everything, files


def _known(run: Any) -> dict[str, Any]:
    """What earlier evaluations found; a damaged file is moved aside, and not onto another."""
    try:
        return run.metrics()
    except UserError as error:
        first = run.path / "metrics.json.broken"
        places = chain([first], (first.with_name(f"{first.name}-{n}") for n in count(2)))
        aside = next(path for path in places if not os.path.lexists(path))
        run.metrics_file.rename(aside)
        print(f"note: metrics.json was moved to {aside} and begun anew: {error}", file=sys.stderr)
        return {}


def _examples(options: argparse.Namespace, config: Any) -> tuple[Any, str]:
    """The first of the test data, or of the training data where there is no other."""
    import numpy as np

    from ..training.run import evaluation_data

    count = options.examples or 100
    if options.split:
        return evaluation_data(config, options.data, options.split, count), options.split
    train = evaluation_data(config, options.data, "train", count)
    try:
        test = evaluation_data(config, options.data, "test", count)
    except UserError:
        test = train
    if np.array_equal(test, train):  # a folder or an array that knows of no split is its own
        print("no test data was found: these are training examples", file=sys.stderr)
        return train, "train"
    return test, "test"
