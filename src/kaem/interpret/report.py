"""The report of a run, one page that can be read, printed and sent: what `kaem report` does."""

import html
import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomically
from ..models import KAEM, AbstractModel
from ..page import Markup, figure, page, score, table
from ..runs.folder import RunFolder, checked_output
from .closed_forms import family, fit_places
from .curves import Place, place_name
from .figures import FIGURES, PRIOR
from .gallery import Gallery

_FORMS = 12  # closed forms shown, of the most influential coordinates


def report(
    run: RunFolder | str | PathLike[str],
    output: Path | None = None,
    data: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw the figures of a run and write its report; returns the files, the report last.

    **Arguments:** `output` is the page, by default `report.html` in the run; `data` is where examples
    come from, if not from the run's own data; `say` is told what is being done.
    """
    run = RunFolder.open(run)
    path = checked_output(output or run.report_file, ".html")
    run.check_folders()
    measured = _metrics(run, say)
    gallery = Gallery(run, source=data)
    name, model = run.path.resolve().name, gallery.model
    pictures, written = _pictures(gallery, say)
    body = [
        f"<h1>{html.escape(name)}</h1><p>{html.escape(model.about)}</p>",
        table([], [[label, text] for label, text in facts(run, model)]),
        *pictures,
        *("<h2>Measured</h2>", measured, "<h2>To repeat it</h2>", _again(run)),
    ]
    write_atomically(path, page(f"{name} - KAEM run", "".join(body)).encode())
    return [*written, path]


def training_seconds(history: list[dict[str, Any]]) -> float:
    """Return the seconds of all sessions: the clock of the history starts again with each."""
    seconds = [record.get("seconds", 0) for record in history]
    ends = [a for a, b in pairwise(seconds) if b < a]
    return sum(ends) + (seconds[-1] if seconds else 0)


def facts(run: RunFolder, model: AbstractModel) -> list[tuple[str, str]]:
    """Return the rows of a table: a name and what is so called."""
    record, history, settings = run.record(), run.history(), run.settings()
    last = history[-1] if history else {}
    rows = [
        ("model", type(model).__name__),
        ("trained", f"{record['what']}, {last.get('step', 0):,} updates, {record['created']}"),
        ("time", f"{training_seconds(history):,.0f} s of training"),
        ("data", f"{settings.data.name}: {record['data']['shape']}"),
    ]
    prior = settings.arguments.get("prior", {})
    going_on = settings.arguments["model"]["start"]
    if going_on or prior.get("start"):
        how = "goes on from" if going_on else "prior taken over from"
        kept = ", and left as it was" if prior.get("frozen") else ""
        rows.append(("start", f"{how} {going_on or prior['start']}{kept}"))
    rows += model.facts()
    if "generator" in settings.kinds:
        rows.append(("generator", settings.kinds["generator"]))
    if "log_likelihood" in last:
        rows.append(("log-likelihood", f"{last['log_likelihood']:.1f} nats per example"))
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return [*rows, *settings.learner().facts(last), ("versions", versions)]


def _pictures(gallery: Gallery, say: Callable[[str], None]) -> tuple[list[str], list[Path]]:
    """Return the sections of all figures that belong to this run, and the files drawn.

    Where one cannot be drawn, a note says why.
    """
    parts, written = [], []
    sections: dict[str, list[str]] = {}
    for name, entry in FIGURES.items():
        if entry.caption is not None and entry.belongs(gallery):
            sections.setdefault(entry.section, []).append(name)
    for section, names in sections.items():
        parts.append(f"<h2>{html.escape(section)}</h2>")
        for name in names:
            entry = FIGURES[name]
            path = gallery.run.figures / f"{name}.{entry.formats[0]}"
            say(f"drawing {path}")
            try:
                entry.write(gallery, path)
            except (UserError, OSError) as error:  # most likely: data that are elsewhere now
                parts.append(f'<p class="note">No {name}: {html.escape(str(error))}</p>')
                continue
            written.append(path)
            parts.append(figure(path, entry.caption or "", entry.wide))
        if section == PRIOR:
            say("looking for closed forms")
            parts.append(closed_forms(gallery.model, gallery.influence.places[:_FORMS]))
    return parts, written


def closed_forms(model: KAEM, places: list[Place]) -> str:
    """Return the closed forms of some coordinates as a table."""
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


def _metrics(run: RunFolder, say: Callable[[str], None]) -> str:
    try:
        details, note = run.current_metrics()
        try:
            body = [_measured(name, entry) for name, entry in details.items()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{run.metrics_file} is damaged ({error})") from error
    except UserError as error:
        say(f"note: what was measured is left out: {error}")
        return f'<p class="note">Left out: {html.escape(str(error))}</p>'
    if note:
        say(f"note: {note}")
        note = f'<p class="note">{html.escape(note)}.</p>'
    elif not details:
        name = html.escape(shlex.quote(str(run.path)))
        return f"<p>Nothing was measured yet: <code>kaem evaluate {name}</code>.</p>"
    header = ["metric", "value", "95 % interval", "samples or examples", "note"]
    return note + (table(header, body) if body else "")


def _measured(metric: str, entry: dict[str, Any]) -> list[str]:
    """Return the row of one metric."""
    interval = entry.get("interval")
    between = f"{interval[0]:,.5g} to {interval[1]:,.5g}" if interval else ""
    count = entry.get("generated", entry.get("examples", {})).get("n", "")
    why = Markup(f'<span class="note">{html.escape(entry.get("why", ""))}</span>')
    return [metric, score(entry), between, str(count), why]


def _again(run: RunFolder) -> str:
    """Return the commands that repeat the run, and everything they set."""
    record, settings, name = run.record(), run.settings().to_dict(), run.path.resolve().name
    what, begun = record["what"], f"{name}/{run.start_file.name}"
    command = ["--config", f"{name}/config.json", "--out", f"{name}-again"]
    if settings["model"].get("start"):  # the run itself keeps what it went on from
        what, command = "digits-kan", [*command, "--set", f"model.start={begun}"]
    elif settings.get("prior", {}).get("start"):
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
