"""Runs and sets of samples, measured: every number with all that is needed to repeat it, or refuse it.

A metric is an entry of `details` with its value, its error where it has one, and what it was
computed from: extractor, hash of its weights, numbers of samples, hashes of both sets, seeds,
effort, versions. `results` is the same without the circumstances, one number for each name.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..cache import cache_folder
from ..data import load
from ..data.arrays import Split
from ..errors import UserError
from ..files import digest, sha256, write_atomically
from ..models import AbstractModel
from ..runs import RunFolder
from ..runs.folder import checked_output
from ..runs.sampling import draws
from . import figures
from .distances.sets import check_memory, sample_type
from .likelihood.driver import estimator
from .metric import Entry, Examples, Metric, Report, Request, Sets
from .registry import METRICS

Say = Callable[[str], None]

# What is advised for a run's data, and what takes its place for two sets.
_SETTINGS = {
    "--set data.size=none": "no --size",
    "--set data.size=N": "--size N",
    ", or take fewer with `--set data.limit=N`": "",
    "which to use with --set data.key=NAME": "which to use by naming it x",
}


def evaluate(
    run: RunFolder | str | PathLike[str],
    *,
    fid: bool = False,
    kid: bool = False,
    proxy: bool | None = None,
    likelihood: str | None = None,
    posterior: bool = False,
    gap: bool = False,
    metrics: Sequence[str] = (),
    data: str | None = None,
    split: Split | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Measure a run, and keep what was found in its `metrics.json`, each metric as soon as it is done.

    Returns `results` (a number for each name), `details` (with all circumstances) and `files` (what was
    written). What cannot be done is refused before anything long begins.

    **Arguments:** `fid`, `kid`, `proxy`, `likelihood` (a name of `ESTIMATORS`), `posterior`, `gap` and the
    names in `metrics` say what to measure; without any, the proxy is. `data` is a reference or source of examples
    other than the run's own, `split` which part of it: by default the training data for what compares
    samples, and test data, if there are any, for the rest. What else is `asked` are fields of a `Request`:
    so many `samples` are drawn and so many `examples` taken; `weights` are Inception's, `sizes` what limits
    are extrapolated from; `proposals`, `temperatures` and `steps` are the effort of likelihoods and chains,
    `target_error` and `budget` what an effort that adapts should reach and may cost;
    `seed` is that of all draws; `report` is told of progress, and `say` of what is worth a line.
    """
    run = RunFolder.open(run)
    if likelihood:
        estimator(likelihood)
        metrics = [*metrics, f"likelihood-{likelihood}"]
    chosen = _chosen(metrics, fid=fid, kid=kid, proxy=proxy, posterior=posterior, gap=gap)
    request = _request(chosen, **asked)
    run.check_folders()
    model = run.model()
    for metric in chosen.values():
        metric.check(model, request)
    kept = _Kept(run, request.say)
    name = data or run.settings().data.name
    if any(metric.of == "samples" for metric in chosen.values()):
        assert request.samples is not None
        check_memory(model, request.samples)
        part: Split = split or "train"
        real = run.data(data, part, say=request.say)
        if real.shape[1:] != model.data_shape:
            raise UserError(
                f"the run makes data of shape {model.data_shape}, but {name} has shape "
                f"{real.shape[1:]}; compare with data of the kind it was trained on."
            )
        sets = Sets(real, drawn(model, request.samples, request.seed, request.report), request)
        source = {"source": name, "split": part, "is_training_data": _trained_on(run, real)}
        kept.compute(chosen, "samples", sets, {"reference": source})
    if any(metric.of == "examples" for metric in chosen.values()):
        x, where = _examples(run, data, split, request.examples, request.say)
        source = {"source": name, "split": where}
        for which, metric in chosen.items():
            some = x[: asked.get("examples") or metric.usual]
            alone = Examples(model, some, request)
            kept.compute({which: metric}, "examples", alone, {"examples": source})
    return _outcome(kept.details, kept.files)


def compare_sets(
    real: str | np.ndarray,
    fake: str | np.ndarray,
    *,
    fid: bool = False,
    kid: bool = False,
    proxy: bool | None = None,
    metrics: Sequence[str] = (),
    split: Split = "train",
    size: int | None = None,
    weights: str | None = None,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    report: Report | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Measure how far two sets of samples are apart: images [n, H, W, C], rows, or features [n, D].

    Sets are arrays, or names of what `kaem.data.load` reads: folders, files, datasets. Returns what
    `evaluate` does.

    **Arguments:** `size` is what images that are loaded are cropped and resized to; `output` a `.json` file
    for what was found. For the others see `evaluate`.
    """
    chosen = _chosen(metrics, fid=fid, kid=kid, proxy=proxy)
    for name, metric in chosen.items():
        if metric.of == "examples":
            raise UserError(
                f"--metric {name} needs a model, but REAL and FAKE are two sets of data; give a run."
            )
    request = _request(chosen, weights=weights, sizes=sizes, seed=seed, report=report, say=say)
    if size is not None and size < 1:
        raise UserError(f"--size must be at least 1, got {size}.")
    place = None if output is None else checked_output(output, ".json", beside=".png")
    if place and not place.absolute().parent.is_dir():
        raise UserError(f"there is no folder for {place}; make it, or choose another file.")
    sources = (real, fake)
    a, b = (_loaded(source, split, size, say) for source in sources)
    sets = Sets(a, b, request)
    details: dict[str, Entry] = {}
    for metric in chosen.values():
        for name, entry in metric.entries(sets).items():
            details[name] = entry | {"versions": versions()}
            for key, source in zip(("reference", "generated"), sources, strict=True):
                where = {"source": source} if isinstance(source, str) else {}
                details[name][key] = entry[key] | where | {"split": split, "size": size}
    files = []
    if place:
        _write(place, details)
        beside = place.with_suffix(".png")
        files = [place, *([beside] if figures.extrapolations(details, beside) else [])]
    return _outcome(details, files)


def _chosen(names: Sequence[str], **flags: bool | None) -> dict[str, Metric]:
    """Return metrics by name, the proxy among them if nothing else was asked for."""
    names = [*names, *(name for name, wanted in flags.items() if wanted)]
    if flags["proxy"] is None and not names:
        names = ["proxy"]
    for name in names:
        if name not in METRICS:
            raise UserError(f"there is no metric {name!r}; choose one of {', '.join(METRICS)}.")
    return {name: metric for name, metric in METRICS.items() if name in names}


def _request(chosen: Mapping[str, Metric], **asked: Any) -> Request:
    """Return the request, with usual numbers for those not given; raise for what was given in vain."""
    request = Request(**asked, cache=cache_folder() / "features")
    effort = ("proposals", "temperatures", "steps", "target_error", "budget")
    options = ("weights", "sizes", "samples", "examples", *effort)
    for option in options:
        if not getattr(request, option) or any(m.takes(option) for m in chosen.values()):
            continue
        takers = [m.flag or f"--metric {n}" for n, m in METRICS.items() if m.takes(option)]
        *others, last = dict.fromkeys(takers)
        listed = f"{', '.join(others)} and {last}" if others else last
        flag = option.replace("_", "-")
        raise UserError(f"--{flag} is for {listed}; add one of them.")
    usual = {
        kind: max(m.usual for m in chosen.values() if m.of == kind)
        for kind in dict.fromkeys(m.of for m in chosen.values())
        if getattr(request, kind) is None
    }
    return replace(request, **usual)  # type: ignore[arg-type]


class _Kept:
    """What was found, written to the run at once: what follows may take hours, and fail."""

    def __init__(self, run: RunFolder, say: Say) -> None:
        self.run, self.say, self.model = run, say, sha256(run.model_file)
        self.details: dict[str, Entry] = {}
        self.files = [run.metrics_file]

    def compute(
        self, chosen: Mapping[str, Metric], of: str, sets: Sets | Examples, known: dict[str, Entry]
    ) -> None:
        """Compute the metrics of one kind, of which more is `known` than the sets themselves tell."""
        found: dict[str, Entry] = {}
        for metric in chosen.values():
            if metric.of == of:
                entries = metric.entries(sets)
                found |= entries
                self._keep(entries, known)
                for name, draw in sets.figures.items():
                    self._draw(name, draw)
                sets.figures.clear()
        self._draw("extrapolation.png", lambda path: figures.extrapolations(found, path))

    def _keep(self, entries: dict[str, Entry], known: dict[str, Entry]) -> None:
        facts = {"model_sha256": self.model, "versions": versions()}
        for name, entry in entries.items():
            more = {key: entry[key] | value for key, value in known.items()}
            self.details[name] = entry | facts | more
        before = self._before().items()
        # What an earlier model of the run did is not this one's.
        same = {n: e for n, e in before if e.get("model_sha256") == self.model}
        _write(self.run.metrics_file, same | self.details)

    def _draw(self, name: str, draw: Callable[[Path], Any]) -> None:
        path = self.run.figures / name
        if draw(path) is not False:
            self.files.append(path)

    def _before(self) -> dict[str, Any]:
        """Return what earlier evaluations found; a damaged file is moved aside, and not onto another."""
        try:
            return self.run.metrics()
        except UserError as error:
            first = self.run.path / "metrics.json.broken"
            places = chain([first], (first.with_name(f"{first.name}-{n}") for n in count(2)))
            aside = next(path for path in places if not os.path.lexists(path))
            self.run.metrics_file.rename(aside)
            self.say(f"note: metrics.json was moved to {aside} and begun anew: {error}")
            return {}


def drawn(model: AbstractModel, n: int, seed: int, report: Report | None = None) -> np.ndarray:
    """Draw `n` samples [n, *data_shape]: images as bytes, as they would be saved, other data as it is."""
    samples, done = np.empty((n, *model.data_shape), sample_type(model)), 0
    for x in draws(model, n, seed):
        start, done = done, done + len(x)
        samples[start:done] = x * 255 + 0.5 if samples.dtype == np.uint8 else x
        if report:
            report("samples", done, n)
    return samples


def _trained_on(run: RunFolder, x: np.ndarray) -> bool:
    return bool(run.record()["data"]["sha256"] == digest(x))


def _examples(
    run: RunFolder, data: str | None, split: Split | None, n: int | None, say: Say
) -> tuple[np.ndarray, str]:
    """Return the first of the test data, or of what there is where there is no other; and which they are."""
    if split:
        return run.data(data, split, n), split
    train = run.data(data, "train", n)
    try:
        test = run.data(data, "test", n)
    except UserError:
        test = train
    if np.array_equal(test, train):  # a folder or an array that knows of no split is its own
        if data is not None and not _trained_on(run, run.data(data)):
            return train, "all"
        say("no test data was found: these are training examples")
        return train, "train"
    return test, "test"


def _loaded(source: str | np.ndarray, split: Split, size: int | None, say: Say) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    if (Path(source) / "config.json").is_file():
        raise UserError(
            f"{source} is a run, not a set of images. Evaluate runs one by one, put them side by side "
            "with `kaem compare`, or draw from one with `kaem sample RUN -o FILE.npz`."
        )
    try:
        return load(source, split=split, size=size, mixed=size is not None, say=say)
    except UserError as error:  # settings of a run are options here
        message = str(error)
        for setting, option in _SETTINGS.items():
            message = message.replace(setting, option)
        raise UserError(message) from error


def _write(path: Path, details: dict[str, Entry]) -> None:
    content = {"results": flat(details), "details": details}
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False).encode())


def _outcome(details: dict[str, Entry], files: Sequence[Path]) -> dict[str, Any]:
    return {"results": flat(details), "details": details, "files": list(map(str, files))}


def flat(details: dict[str, Entry]) -> dict[str, float]:
    """Return one number for each name; errors under the name with `_error`."""
    found = {}
    for name, entry in details.items():
        if entry["value"] is not None:
            found[name] = entry["value"]
            if entry.get("error") is not None:
                found[f"{name}_error"] = entry["error"]
    return found


def versions() -> dict[str, str]:
    """Return the versions of what computes metrics."""
    return {name: version(name) for name in ("kaem", "jax", "jaxlib", "numpy", "scipy")}
