"""The report of a run: one page that can be read, printed and sent."""

import html
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ..baselines import DDPM
from ..data.sheets import is_image, sample_sheet, save_png
from ..errors import UserError
from ..files import write_atomically
from ..model import KAEM
from ..training.run import Run
from .closed_forms import family, fit_places
from .curves import Place, place_name
from .facts import ABOUT, facts
from .gallery import FIGURES, Choices, Gallery
from .page import Markup, figure, page, score, table

_FORMS = 12  # closed forms shown, of the most influential coordinates

_CAPTIONS = {
    "samples": "100 samples",
    "reconstructions": "Data, what the model makes of them through a draw of their posterior latents, and the difference",
    "influence": "How much of the output's variance each latent makes: over its whole range, and by its slope",
    "densities": "The learned densities against their reference, ordered by influence, with exact samples and the aggregated posterior of data",
    "traversal": "One latent swept through its quantiles, all others at their medians: what it does, above where it does it",
    "interpolation": "From one sample to another: on the sphere through both, and straight through their quantiles",
    "temperatures": "The ladder of temperatures, how often neighbours swapped, and the integral they add up to",
    "training": "What was logged during training",
}


class _Pages:
    """Draws figures for a page, and puts a note where one cannot be drawn."""

    def __init__(self, gallery: Gallery, say: Callable[[str], None]) -> None:
        self.gallery, self.say = gallery, say
        self.written: list[Path] = []

    def add(self, name: str, choices: Choices = Choices()) -> str:  # noqa: B008
        path = self.gallery.run.figures / f"{name}.png"
        self.say(f"drawing {path}")
        try:
            if name == "samples":
                key = jax.random.key(self.gallery.run.config().training.seed)
                save_png(path, sample_sheet(self.gallery.model.sample(key, 100)))
            else:
                FIGURES[name](self.gallery, path, choices)
        except (UserError, OSError) as error:  # most likely: data that are elsewhere now
            return f'<p class="note">No {name}: {html.escape(str(error))}</p>'
        self.written.append(path)
        return figure(path, _CAPTIONS[name], wide=name != "samples")

    def prior(self) -> str:
        """What can be said of a prior that is a product of densities."""
        model = self.gallery.model
        if not isinstance(model, KAEM):
            return ""
        parts = ["<h2>What the prior learned</h2>", self.add("influence"), self.add("densities")]
        if is_image(model.data_shape):
            parts += [self.add("traversal"), self.add("interpolation")]
        self.say("looking for closed forms")
        return "".join([*parts, closed_forms(model, self.gallery.influence.places[:_FORMS])])


def closed_forms(model: KAEM, places: list[Place]) -> str:
    """The closed forms of some coordinates as a table."""
    from .closed_forms.printing import import_sympy, mathml

    try:
        import_sympy()
    except UserError as error:
        return f'<h2>Closed forms</h2><p class="note">{html.escape(str(error))}</p>'
    fits = list(fit_places(model.prior, places))
    body = [
        [
            place_name(fit.place),
            "good" if fit.good else "no good form",
            f"{fit.relative_error:.2%}",
            f"{fit.kl:.1e}",
            f"{fit.r_squared:.4f}",
            Markup(
                f'{mathml(fit.form, 3)}<span class="note">{html.escape(family(fit.form))}</span>'
            ),
        ]
        for fit in fits
    ]
    header = ["latent", "verdict", "error", "KL", "R²", "log p(z), up to a constant"]
    good = sum(fit.good for fit in fits)
    return (
        f"<h2>Closed forms</h2><p>{good} of the {len(fits)} most influential densities have a good "
        "closed form: the shortest that 100,000 samples could not tell apart, if its density is off by at "
        "most 2 % of the peak. Error: the largest of the density, over its peak; KL in nats. "
        "<code>kaem symbolic</code> finds those of all coordinates and what using them costs; with a "
        "larger <code>--samples-for-bic</code> forms are longer and closer.</p>"
        + table(header, body)
    )


def _metrics(run: Run, say: Callable[[str], None]) -> str:
    try:
        details = run.metrics()
        body = [_measured(name, entry) for name, entry in details.items()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = error if isinstance(error, UserError) else f"{run.metrics_file} is damaged ({error})"
        say(f"note: what was measured is left out: {why}")
        return f'<p class="note">Left out: {html.escape(str(why))}</p>'
    if not details:
        name = html.escape(shlex.quote(str(run.path)))
        return f"<p>Nothing was measured yet: <code>kaem evaluate {name}</code>.</p>"
    return table(["metric", "value", "95 % interval", "samples or examples", "note"], body)


def _measured(metric: str, entry: dict[str, Any]) -> list[str]:
    """The row of one metric."""
    interval = entry.get("interval")
    between = f"{interval[0]:,.5g} to {interval[1]:,.5g}" if interval else ""
    count = entry.get("generated", entry.get("examples", {})).get("n", "")
    why = Markup(f'<span class="note">{html.escape(entry.get("why", ""))}</span>')
    return [metric, score(entry), between, str(count), why]


def _again(run: Run) -> str:
    """The commands that repeat the run, and everything they set."""
    record = run.record()
    settings, name = record["settings"], run.path.resolve().name
    what, begun = record["what"], f"{name}/{run.start_file.name}"
    command = ["--config", f"{name}/config.json", "--out", f"{name}-again"]
    if settings["model"].get("start"):  # the run itself keeps what it went on from
        what, command = "quickstart", [*command, "--set", f"model.start={begun}"]
    elif settings["prior"].get("start"):
        command += ["--prior-from", begun]
    command = ["kaem", "train", what, *command]
    devices = f"JAX_NUM_CPU_DEVICES={record['devices']} " if "devices" in record else ""
    return (
        f"<pre>{html.escape(devices + shlex.join(command))}</pre>"
        f"<p>The data had SHA-256 <code>{record['data']['sha256'][:16]}</code>… With the same data, "
        "versions and number of devices, the same machine gives the same bits. The command is for "
        "the folder that holds the run.</p>"
        "<details><summary>All settings</summary>"
        f"<pre>{html.escape(json.dumps(settings, indent=2))}</pre></details>"
    )


def finish(
    run: Run,
    say: Callable[[str], None] = lambda _: None,
    *,
    output: Path | None = None,
    source: str | None = None,
) -> list[Path]:
    """Draw the figures of a run and write its report; returns the files, the report last."""
    run.check_folders()
    measured = _metrics(run, say)
    gallery = Gallery(run, source=source)
    model, pages, kind = gallery.model, _Pages(gallery, say), type(gallery.model).__name__
    images = is_image(model.data_shape)
    name = run.path.resolve().name
    body = [
        f"<h1>{html.escape(name)}</h1><p>{ABOUT[kind]}</p>",
        table([], [[label, text] for label, text in facts(run, model)]),
    ]
    if images:
        body += ["<h2>Samples</h2>", pages.add("samples")]
    if images and not isinstance(model, DDPM):
        body += ["<h2>Reconstructions</h2>", pages.add("reconstructions")]
    body += [pages.prior(), "<h2>Training</h2>", pages.add("training")]
    if run.config().posterior.criterion == "thermodynamic":
        body += ["<h2>Temperatures</h2>", pages.add("temperatures")]
    body += ["<h2>Measured</h2>", measured, "<h2>To repeat it</h2>", _again(run)]
    path = output or run.path / "report.html"
    write_atomically(path, page(f"{name} - KAEM run", "".join(body)).encode())
    return [*pages.written, path]
