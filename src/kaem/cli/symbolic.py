"""`kaem symbolic RUN`: closed forms for the learned densities, and what using them would cost."""

import argparse
from pathlib import Path
from typing import Any

from .options import MODEL, NUMBER, OUTPUT
from .progress import Counter, say


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", **MODEL)
    about = "what is written down: log p, or the energy log p - log pi_0"
    add("--of", choices=("log-density", "energy"), default="log-density", help=about)
    about = (
        "forms that N samples could not tell apart count as alike; more asks for closer "
        "and longer formulas (default 100000)"
    )
    add("--samples-for-bic", **NUMBER, default=100_000, help=about)
    add("--count", **NUMBER, default=8, help="of the worst fits to draw (default 8)")
    add(*OUTPUT, metavar="DIR", help="default RUN")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..interpret.closed_forms import symbolic

    what = (options.run, options.of, options.samples_for_bic)
    folder = Path(options.output) if options.output else None
    found = symbolic(*what, count=options.count, folder=folder, say=say, report=Counter())
    files = [str(path) for path in found.files]
    if not options.json:
        _show(found.fits, found.cost)
        print(f"wrote {', '.join(files)}")
    results = {"coordinates": len(found.fits), "good": found.fits.good, **found.cost}
    return {"results": results, "details": found.details, "files": files}


def _show(fits: Any, cost: dict[str, float]) -> None:
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
    others = "; the others keep the best form found (a larger --samples-for-bic allows longer ones)"
    others = "" if fits.good == len(fits) else others
    print("KL in nats; error: the largest of the density, in % of its peak; k: parameters.")
    print(f"{fits.good} of {len(fits)} densities have a good closed form{others}.")
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
