"""Runs side by side: one page and one JSON with samples, metrics and costs.

Costs are measured here and now, all runs in turns, so that their ratios hold whatever the
machine was doing while each was trained.
"""

import base64
import html
import io
import json
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import jax
import numpy as np

from ..data.checks import checked_finite
from ..data.sheets import is_image, sample_sheet
from ..errors import UserError
from ..files import read_json, write_atomically
from ..measuring import interleaved
from ..page import page, score, table
from ..training.parameters import sizes
from .folder import RunFolder, checked_output
from .timing import sampler, updater

_STEPS = 4  # of a sampler of many like steps, that are timed


def compare(
    runs: Sequence[str | PathLike[str]],
    *,
    repeats: int = 5,
    images: int = 36,
    seed: int = 0,
    output: str | PathLike[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return what each run is, what it reached, and what an update and 100 samples cost, in seconds.

    With `output`, a `.html` file, the comparison is also written as one page with `images` samples of
    each run, and as JSON beside it; `files` then says where.
    """
    place = None if output is None else checked_output(output, ".html", beside=".json")
    if len(runs) < 2:
        raise UserError("compare takes at least two runs, got one; give another run folder.")
    if repeats < 1 or seed < 0:
        raise UserError(
            f"--repeats must be at least 1 and --seed not negative, got {repeats} and {seed}."
        )
    folders = _named([RunFolder.open(path) for path in runs])
    models = {name: run.model() for name, run in folders.items()}
    shapes = {model.data_shape for model in models.values()}
    if len(shapes) > 1:
        raise UserError(
            f"the runs make data of different shapes, {' and '.join(map(str, sorted(shapes)))}; "
            "compare runs of one data set."
        )
    say(f"measuring {len(folders)} runs in turns; compiling first")
    entries = {name: _entry(run, models[name], say) for name, run in folders.items()}
    _measure(entries, folders, models, repeats)
    digests = {entry["data"]["sha256"] for entry in entries.values()}
    result = {"runs": entries, "same_data": len(digests) == 1, "seed": seed}
    if place is not None:
        drawn = {
            name: checked_finite(model.sample(jax.random.key(seed), images))
            for name, model in models.items()
            if is_image(model.data_shape)
        }
        write_atomically(place, _page(result, drawn).encode())
        beside = place.with_suffix(".json")
        write_atomically(beside, json.dumps(result, indent=2).encode())
        result["files"] = [str(place), str(beside)]
    return result


def _named(runs: list[RunFolder]) -> dict[str, RunFolder]:
    short = [run.path.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run.path) for run in runs]
    return dict(zip(names, runs, strict=True))


def _entry(run: RunFolder, model: Any, say: Callable[[str], None]) -> dict[str, Any]:
    record, history = run.record(), run.history()
    details, note = run.current_metrics()
    if note:
        say(f"note: {note}")
    results = read_json(run.metrics_file).get("results", {}) if details else {}
    if not isinstance(results, dict):
        raise UserError(
            f"{run.metrics_file} is not what `kaem evaluate` writes; restore it, or move it away."
        )
    results = {n: v for n, v in results.items() if n.removesuffix("_error") in details}
    last = history[-1] if history else {}
    return {
        "model": type(model).__name__,
        "what": record["what"],
        "data": {"name": run.settings().data.name, **record["data"]},
        "parameters": sum(sizes(model).values()),
        "updates": last.get("step", 0),
        "training_seconds": last.get("seconds"),
        "training": {k: v for k, v in last.items() if k not in ("step", "seconds")},
        "metrics": {"results": results, "details": details} if details else {},
    }


def _measure(
    entries: dict[str, Any], runs: dict[str, RunFolder], models: dict[str, Any], repeats: int
) -> None:
    """Add to the entries what an update and 100 samples cost, and how that compares with the first."""
    updates = {
        name: updater(run.settings(), tuple(run.record()["data"]["shape"][1:]))
        for name, run in runs.items()
    }
    faster = {name: model.faster(_STEPS) for name, model in models.items()}
    draws = {name: sampler(model, 100) for name, (model, _) in faster.items()}
    costs = {
        "seconds_per_update": interleaved(updates, repeats, least=0.3),
        "seconds_per_100_samples": interleaved(draws, repeats, least=0.1),
    }
    first = next(iter(entries))
    for cost, timed in costs.items():
        for name, entry in entries.items():
            factor = faster[name][1] if cost == "seconds_per_100_samples" else 1.0
            entry[cost] = {k: v * factor for k, v in timed[name].items() if k != "times"}
            entry[f"{cost}_over_first"] = entry[cost]["median"] / entries[first][cost]["median"]


_ROWS = (
    ("model", lambda e: e["model"]),
    ("trained", lambda e: f"{e['what']}, {e['updates']:,} updates"),
    ("data", lambda e: f"{e['data']['name']} {e['data']['shape']}"),
    ("parameters", lambda e: f"{e['parameters']:,}"),
    ("training time", lambda e: _seconds(e["training_seconds"])),
    ("one update", lambda e: _cost(e, "seconds_per_update")),
    ("100 samples", lambda e: _cost(e, "seconds_per_100_samples")),
)
_METRICS = {
    "reconstruction": "squared error of a reconstructed pixel",
    "log_likelihood": "log p(x|z), nats",
    "elbo": "ELBO, nats",
    "log_marginal": "log p(x) while training, nats",
    "denoising_error": "squared error of the noise",
}


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} s"


def _cost(entry: dict[str, Any], name: str) -> str:
    times = entry[name]
    text = f"{times['median'] * 1e3:,.4g} ms ({times['lower_quartile'] * 1e3:,.4g} to {times['upper_quartile'] * 1e3:,.4g})"
    return f"{text}, {entry[f'{name}_over_first']:,.3g} times the first"


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the comparison as a table: a header, then one row for each fact."""
    entries = list(result["runs"].values())
    lines = [["", *result["runs"]]]
    lines += [[label, *(show(e) for e in entries)] for label, show in _ROWS]
    for name, label in _METRICS.items():
        values = [e["training"].get(name) for e in entries]
        if any(v is not None for v in values):
            lines.append([label, *("" if v is None else f"{v:,.4g}" for v in values)])
    found = [e["metrics"].get("details", {}) for e in entries]
    for name in dict.fromkeys(name for details in found for name in details):
        scores = [details.get(name, {}) for details in found]
        kinds = {_circumstances(s) for s in scores if s.get("value") is not None}
        label = name if len(kinds) < 2 else f"{name} (not comparable: computed differently)"
        lines.append([label, *map(score, scores)])
    return lines


def _circumstances(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same for two scores to be compared."""
    sets = [entry.get(name, {}) for name in ("reference", "examples")]
    count = entry.get("generated", {}).get("n")
    return (entry.get("extractor"), count, *(s.get("sha256") for s in sets))


def markdown(result: dict[str, Any]) -> str:
    """Return the comparison as a table in Markdown."""
    return markdown_table(rows(result))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, of which the first is the header, as a table in Markdown."""
    # A bar within a cell, as in log p(x|z), would end it.
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    header, *body = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *body])


def _page(result: dict[str, Any], drawn: dict[str, np.ndarray]) -> str:
    """Return one self-contained HTML file."""
    header, *body = rows(result)
    sheets = "".join(
        f'<figure><img alt="samples of {html.escape(name)}" src="data:image/png;base64,'
        f'{_png(samples)}"><figcaption>{html.escape(name)}: {result["runs"][name]["model"]}'
        "</figcaption></figure>"
        for name, samples in drawn.items()
    )
    note = (
        "All runs saw the same data."
        if result["same_data"]
        else "These runs were trained on different data: their metrics are not comparable."
    )
    content = (
        f"<h1>Runs compared</h1><p>{note} Costs were measured for this page, all runs in turns, "
        "as medians with quartiles; samples share one seed.</p>"
        f'<h2>Samples</h2><div class="side">{sheets}</div><h2>Numbers</h2>{table(header, body)}'
    )
    return page("Runs compared", content)


def _png(images: np.ndarray) -> str:
    from PIL import Image

    sheet = sample_sheet(images)
    sheet = np.repeat(np.repeat(sheet, 2, axis=0), 2, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if sheet.shape[-1] == 1 else sheet).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
