"""`kaem symbolic RUN`: closed forms for the learned densities, and what using them would cost."""

import argparse
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UNREADABLE, UserError
from .progress import Counter

_PICTURES = 256  # made from the same quantiles by both models
_DRAWN = 1000  # samples for each distance
_PARTIAL = ".symbolic.partial.json"  # what an interrupted search has found
_KEPT = 20.0  # seconds between writing it


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder or a .safetensors model")
    parser.add_argument(
        "--of", choices=("log-density", "energy"), default="log-density",
        help="what is written down: log p, or the energy log p - log pi_0",
    )  # fmt: skip
    parser.add_argument(
        "--samples-for-bic", type=int, default=100_000, metavar="N",
        help="forms that N samples could not tell apart count as alike; more asks for closer "
        "and longer formulas (default 100000)",
    )  # fmt: skip
    parser.add_argument(
        "--count", type=int, default=8, metavar="N", help="of the worst fits to draw (default 8)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="default RUN")


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.samples_for_bic < 2:
        raise UserError(f"--samples-for-bic must be at least 2, got {options.samples_for_bic}.")
    if options.count < 1:
        raise UserError(f"--count must be at least 1, got {options.count}.")

    from ..files import write_atomically
    from ..interpret.closed_forms import to_json
    from ..interpret.closed_forms.figures import symbolic_sheet
    from ..interpret.closed_forms.printing import (
        import_sympy,
        latex,
        latex_table,
        python_source,
        text,
    )
    from ..model import KAEM
    from ..serialisation import load, save
    from ..training.run import Run

    import_sympy()  # before the work, not after it
    source = Path(options.run)
    model = load(source)
    if not isinstance(model, KAEM):
        raise UserError(
            f"{source} holds a {type(model).__name__}, which has no learned one-dimensional "
            "densities; closed forms are for KAEMs."
        )
    folder = (
        Path(options.output) if options.output else source if source.is_dir() else source.parent
    )
    if not options.output:
        Run(folder).check_folders()
    paths = {suffix: folder / f"symbolic.{suffix}" for suffix in ("json", "py", "tex")}
    swapped_file, figure = folder / "symbolic.safetensors", folder / "figures" / "symbolic.png"
    if source.exists() and swapped_file.exists() and source.samefile(swapped_file):
        raise UserError(f"{source} would be overwritten by its own closed forms; give another -o.")

    fits = _found(model.prior, options.of, options.samples_for_bic, source, folder)
    swapped = model.with_symbolic_prior(fits, only_good=False)
    cost = _cost(model, swapped, source) | {"total_kl": fits.total_kl}
    content = to_json(fits) | {"model_sha256": _digest(source), "cost": cost}
    for entry, fit in zip(content["coordinates"], fits, strict=True):
        entry |= {"expression": text(fit.form), "latex": latex(fit.form)}
    write_atomically(paths["json"], json.dumps(content, indent=1, allow_nan=False).encode())
    write_atomically(paths["py"], python_source(fits).encode())
    write_atomically(paths["tex"], latex_table(fits).encode())
    save(swapped, swapped_file)
    symbolic_sheet(model.prior, fits, figure, options.count)
    (folder / _PARTIAL).unlink(missing_ok=True)
    files = [str(path) for path in (*paths.values(), swapped_file, figure)]
    if not options.json:
        _show(fits, cost, files)
    results = {"coordinates": len(fits), "good": fits.good, **cost}
    return {"results": results, "details": content, "files": files}


def _digest(source: Path) -> str:
    """Of the model file that was read."""
    path = source / "model.safetensors" if source.is_dir() else source
    from ..files import sha256

    return sha256(path)


def _found(prior: Any, of: Any, samples: int, source: Path, folder: Path) -> Any:
    """Closed forms of all coordinates; those of an interrupted run of this command are taken over."""
    import numpy as np

    from ..files import write_atomically
    from ..interpret.closed_forms import Fits, fit_places
    from ..interpret.closed_forms.records import fit_from_json, fit_to_json

    stamp = {"model": _digest(source), "of": of, "samples": samples}
    partial, known = folder / _PARTIAL, {}
    with suppress(KeyError, TypeError, *UNREADABLE):
        kept = json.loads(partial.read_text("utf8"))
        if {name: kept[name] for name in stamp} == stamp:
            entries = (fit_from_json(entry, len(prior.shape)) for entry in kept["coordinates"])
            known = {fit.place: fit for fit in entries}

    def keep() -> None:
        entries = [fit_to_json(fit, of) for fit in known.values()]
        write_atomically(partial, json.dumps(stamp | {"coordinates": entries}).encode())

    places = list(np.ndindex(*prior.shape))
    report, last = Counter(), time.monotonic()
    try:
        for fit in fit_places(prior, [p for p in places if p not in known], of, samples):
            known[fit.place] = fit
            report("closed forms", len(known), len(places))
            if time.monotonic() - last > _KEPT:
                keep()
                last = time.monotonic()
    except KeyboardInterrupt:
        keep()
        print(
            f"{len(known)} of {len(places)} closed forms are kept: the same command goes on from there",
            file=sys.stderr,
        )
        raise
    return Fits(of, prior.reference, tuple(prior.shape), samples, tuple(known[p] for p in places))


def _cost(model: Any, swapped: Any, source: Path) -> dict[str, float]:
    """What is lost with the closed forms, measured on what both models make."""
    import jax
    import numpy as np

    from ..metrics.proxies import proxy_distance
    from ..priors import open_uniform

    key, other = jax.random.split(jax.random.key(0))
    u = open_uniform(key, (_PICTURES, *model.prior.shape))
    learned, closed = np.asarray(model.generate(u)), np.asarray(swapped.generate(u))
    found = {"rms_difference": float(np.sqrt(np.mean((learned - closed) ** 2)))}
    first, second = (np.asarray(model.sample(k, _DRAWN)) for k in (key, other))
    made = np.asarray(swapped.sample(key, _DRAWN))
    found["proxy_between_models"] = proxy_distance(second, made)
    found["proxy_by_chance"] = proxy_distance(second, first)
    data = _data(source)
    if data is not None and data.shape[1:] == first.shape[1:]:
        found["proxy_learned_to_data"] = proxy_distance(data, first)
        found["proxy_closed_to_data"] = proxy_distance(data, made)
    return found


def _data(source: Path) -> Any:
    """Of the run, or None where there is no run or its data are not on this machine."""
    from ..training.run import Run, evaluation_data

    try:
        config = Run.open(source if source.is_dir() else source.parent).config()
        return evaluation_data(config, None, "train", 5 * _DRAWN)
    except (UserError, OSError) as error:
        print(f"the distance to the data was not measured: {error}", file=sys.stderr)
        return None


def _show(fits: Any, cost: dict[str, float], files: list[str]) -> None:
    from ..interpret.closed_forms import family
    from ..interpret.closed_forms.printing import text

    what = "log p(z), up to a constant" if fits.of == "log-density" else "f(z), up to a constant"
    print(f"{'place':<9}{'KL':>9}{'error %':>9}{'R^2':>9}{'k':>4}  {'good':<6}family: {what}")
    for fit in fits:
        place = ",".join(str(i + 1) for i in fit.place)
        print(
            f"{place:<9}{fit.kl:>9.1e}{100 * fit.relative_error:>9.2g}{fit.r_squared:>9.5f}"
            f"{fit.parameters:>4}  {'yes' if fit.good else 'NO':<6}"
            f"{family(fit.form, fits.of)}: {text(fit.form, 3)}"
        )
    print(
        "KL in nats; error: the largest of the density, in % of its peak; k: parameters.\n"
        f"{fits.good} of {len(fits)} densities have a good closed form"
        + (
            "."
            if fits.good == len(fits)
            else "; the others keep the best form found (a larger --samples-for-bic allows longer ones)."
        )
    )
    print(f"KL of the learned prior from its closed form: {cost['total_kl']:.3g} nats in all")
    print(f"samples of both from the same quantiles differ by {cost['rms_difference']:.2g} (RMS)")
    print(
        f"proxy distance between both models' samples {cost['proxy_between_models']:.3g} "
        f"(two draws of the learned model: {cost['proxy_by_chance']:.3g})"
    )
    if "proxy_closed_to_data" in cost:
        print(
            f"proxy distance to the data: learned {cost['proxy_learned_to_data']:.3g}, "
            f"closed form {cost['proxy_closed_to_data']:.3g}"
        )
    print(f"wrote {', '.join(files)}")
