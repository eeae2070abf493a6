"""Find the closed forms of a model, measure what using them costs, and write them: `kaem symbolic`."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...data.checks import checked_finite
from ...errors import UNREADABLE, UserError
from ...files import parse_json, read_text, sha256, write_atomically
from ...loading import load
from ...metrics import proxy_distance
from ...models import KAEM
from ...priors import AbstractPrior, open_uniform
from ...runs.folder import RunFolder
from .fits import SAMPLES, Fits, Of, fit_places, symbolic_prior
from .printing import import_sympy, latex, latex_table, python_source, text
from .records import fit_from_json, fit_to_json, read_fits, to_json
from .sheet import symbolic_sheet

_PICTURES = 256  # made from the same quantiles by both models
_DRAWN = 1000  # samples for each distance
_PARTIAL = ".symbolic.partial.json"  # what an interrupted search has found
_KEPT = 20.0  # seconds between writing it

Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class Symbolic:
    """The closed forms of a model, what using them costs, and the files that hold them."""

    fits: Fits
    cost: dict[str, float]
    details: dict[str, Any]  # what symbolic.json holds
    files: tuple[Path, ...]
    model: KAEM  # with the closed forms for its densities


def with_closed_forms(
    model: KAEM, forms: Fits | str | PathLike[str], only_good: bool = True
) -> KAEM:
    """Return the model with closed forms for its prior's densities, ready to sample.

    `forms` are what `fit_prior` found, or the path of a `symbolic.json`. A coordinate without a good
    closed form is an error if `only_good`; else its best form is used.
    """
    fits = read_fits(forms) if isinstance(forms, str | PathLike) else forms
    return model.with_prior(symbolic_prior(model.prior, fits, only_good))


def symbolic(
    run: RunFolder | str | PathLike[str],
    of: Of = "log-density",
    samples: int = SAMPLES,
    *,
    count: int = 8,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    report: Report = lambda what, done, of: None,
) -> Symbolic:
    """Find closed forms of all densities of a run or model file, and write them.

    What a search has found is kept when it is interrupted: the same call goes on from there.

    **Arguments:** `of` is what is written down, the log-density or the energy; forms that `samples`
    samples could not tell apart count as alike; `count` of the worst are drawn; `folder` is that of
    the run or file by default. `say` is told what could not be done, `report` how far the search is.
    """
    if count < 1:
        raise UserError(f"--count must be at least 1, got {count}.")
    if samples < 2:
        raise UserError(f"--samples-for-bic must be at least 2, got {samples}.")
    import_sympy()  # before the work, not after it
    source = Path(run) if isinstance(run, str | PathLike) else run.path
    own = RunFolder(source if source.is_dir() else source.parent)
    file = own.model_file if source.is_dir() else source
    model = load(source)
    model.readable("a closed form")
    if folder is None:
        own.check_folders()
        folder = own.path
    paths = {name: folder / f"symbolic.{name}" for name in ("json", "py", "tex", "safetensors")}
    drawing = folder / "figures" / "symbolic.png"
    if source.exists() and paths["safetensors"].exists() and source.samefile(paths["safetensors"]):
        raise UserError(f"{source} would be overwritten by its own closed forms; give another -o.")

    stamp = {"model": sha256(file), "of": of, "samples": samples}
    fits = _searched(model.prior, stamp, folder / _PARTIAL, say, report)
    closed = with_closed_forms(model, fits, only_good=False)
    cost = _cost(model, closed, own, say) | {"total_kl": fits.total_kl}
    details = to_json(fits) | {"model_sha256": stamp["model"], "cost": cost}
    for entry, fit in zip(details["coordinates"], fits, strict=True):
        entry |= {"expression": text(fit.form), "latex": latex(fit.form)}
    write_atomically(paths["json"], json.dumps(details, indent=1, allow_nan=False).encode())
    write_atomically(paths["py"], python_source(fits).encode())
    write_atomically(paths["tex"], latex_table(fits).encode())
    closed.save(paths["safetensors"])
    symbolic_sheet(model.prior, fits, drawing, count)
    (folder / _PARTIAL).unlink(missing_ok=True)
    return Symbolic(fits, cost, details, (*paths.values(), drawing), closed)


def _searched(
    prior: AbstractPrior,
    stamp: dict[str, Any],
    partial: Path,
    say: Callable[[str], None],
    report: Report,
) -> Fits:
    """Return closed forms of all coordinates; those of an interrupted search are taken over."""
    of, samples, known = stamp["of"], stamp["samples"], {}
    with suppress(KeyError, TypeError, *UNREADABLE):
        kept = parse_json(read_text(partial, 2**25))
        if {name: kept[name] for name in stamp} == stamp:
            entries = (fit_from_json(entry, len(prior.shape)) for entry in kept["coordinates"])
            known = {fit.place: fit for fit in entries}

    def keep() -> None:
        entries = [fit_to_json(fit, of) for fit in known.values()]
        write_atomically(partial, json.dumps(stamp | {"coordinates": entries}).encode())

    places, last = list(np.ndindex(*prior.shape)), time.monotonic()
    try:
        for fit in fit_places(prior, [p for p in places if p not in known], of, samples):
            known[fit.place] = fit
            report("closed forms", len(known), len(places))
            if time.monotonic() - last > _KEPT:
                keep()
                last = time.monotonic()
    except KeyboardInterrupt:
        keep()
        say(
            f"{len(known)} of {len(places)} closed forms are kept: the same command goes on from there"
        )
        raise
    return Fits(of, prior.reference, tuple(prior.shape), samples, tuple(known[p] for p in places))


def _cost(
    model: KAEM, closed: KAEM, run: RunFolder, say: Callable[[str], None]
) -> dict[str, float]:
    """Return what is lost with the closed forms, measured on what both models make."""
    key, other = jax.random.split(jax.random.key(0))
    u = open_uniform(key, (_PICTURES, *model.prior.shape))
    difference = np.asarray(model.generate(u)) - np.asarray(closed.generate(u))
    first, second = (checked_finite(model.sample(k, _DRAWN)) for k in (key, other))
    drawn = checked_finite(closed.sample(key, _DRAWN))
    cost = {
        "rms_difference": float(np.sqrt(np.mean(difference**2))),
        "proxy_between_models": proxy_distance(second, drawn),
        "proxy_by_chance": proxy_distance(second, first),
    }
    try:
        data = RunFolder.open(run.path).data(limit=5 * _DRAWN)
    except (UserError, OSError) as error:  # no run, or its data are not on this machine
        say(f"the distance to the data was not measured: {error}")
        return cost
    if data.shape[1:] == first.shape[1:]:
        cost["proxy_learned_to_data"] = proxy_distance(data, first)
        cost["proxy_closed_to_data"] = proxy_distance(data, drawn)
    return cost
