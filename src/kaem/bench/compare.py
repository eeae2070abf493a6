"""Runs side by side: one page and one JSON with samples, metrics and costs.

Costs are measured here and now, all runs in turns, so that their ratios hold whatever the
machine was doing while each was trained.
"""

import base64
import html
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..baselines import DDPM
from ..data.sheets import is_image, sample_sheet
from ..errors import UserError
from ..files import read_json, write_atomically
from ..interpret.page import page, score, table
from ..serialisation import load
from ..training.dry_run import trained_sizes
from ..training.run import Run
from .measure import interleaved
from .training import updater

_SLOW = 50  # steps of a diffusion sampler beyond which only some are timed


def compare(paths: list[str], repeats: int = 5, images: int = 36, seed: int = 0) -> dict[str, Any]:
    """What each run is, what it reached, and what an update and 100 samples cost, in seconds."""
    runs = [Run.open(path) for path in paths]
    models = [load(run.path) for run in runs]
    names = _names(runs)
    shapes = {model.data_shape for model in models}
    if len(shapes) > 1:
        raise UserError(
            f"the runs make data of different shapes, {' and '.join(map(str, sorted(shapes)))}; "
            "compare runs of one data set."
        )
    entries = {
        name: _entry(run, model) for name, run, model in zip(names, runs, models, strict=True)
    }
    digests = {entry["data"]["sha256"] for entry in entries.values()}
    updates = {
        name: updater(_logging(run.config()), run.record()["data"]["shape"][1:])
        for name, run in zip(names, runs, strict=True)
    }
    sampling, factors = {}, {}
    for name, model in zip(names, models, strict=True):
        sampling[name], factors[name] = _sampler(model)
    timed = interleaved(updates, repeats, least=0.3), interleaved(sampling, repeats, least=0.1)
    for name, entry in entries.items():
        entry["seconds_per_update"] = _scaled(timed[0][name], 1.0)
        entry["seconds_per_100_samples"] = _scaled(timed[1][name], factors[name])
    first = next(iter(entries.values()))
    for entry in entries.values():
        for cost in ("seconds_per_update", "seconds_per_100_samples"):
            entry[f"{cost}_over_first"] = entry[cost]["median"] / first[cost]["median"]
    key = jax.random.key(seed)
    for model, entry in zip(models, entries.values(), strict=True):
        if is_image(model.data_shape):
            draw = eqx.filter_jit(lambda model, key: model.sample(key, images))
            entry["samples"] = np.asarray(draw(model, key))
    return {"runs": entries, "same_data": len(digests) == 1, "seed": seed}


def _names(runs: list[Run]) -> list[str]:
    short = [run.path.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _logging(config: Any) -> Any:
    return replace(config, training=replace(config.training, log_every=1, checkpoint_every=1))


def _entry(run: Run, model: Any) -> dict[str, Any]:
    record, history = run.record(), run.history()
    last = history[-1] if history else {}
    return {
        "model": type(model).__name__,
        "what": record["what"],
        "data": {"name": record["settings"]["data"]["name"], **record["data"]},
        "parameters": sum(trained_sizes(model.trainable()).values()),
        "updates": last.get("step", 0),
        "training_seconds": last.get("seconds"),
        "training": {k: v for k, v in last.items() if k not in ("step", "seconds")},
        "metrics": read_json(run.metrics_file) if run.metrics() else {},
    }


def _sampler(model: Any) -> tuple[Any, float]:
    """A call that draws 100 samples, and how often its time is that of 100 samples.

    A diffusion model is timed over a few of its steps, which are all alike.
    """
    factor = 1.0
    if isinstance(model, DDPM) and (steps := model.sampling_steps or model.timesteps) > _SLOW:
        factor, model = steps / 4, model.with_sampling_steps(4)
    arrays, static = eqx.partition(model, eqx.is_array)
    draw = jax.jit(lambda arrays, key: eqx.combine(arrays, static).sample(key, 100))
    return lambda: draw(arrays, jax.random.key(0)), factor


def _scaled(entry: dict[str, Any], factor: float) -> dict[str, float]:
    return {k: v * factor for k, v in entry.items() if k != "times"}


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
    """The comparison as a table: a header, then one row for each fact."""
    entries = list(result["runs"].values())
    made = [["", *result["runs"]]]
    made += [[label, *(show(e) for e in entries)] for label, show in _ROWS]
    for name, label in _METRICS.items():
        values = [e["training"].get(name) for e in entries]
        if any(v is not None for v in values):
            made.append([label, *("" if v is None else f"{v:,.4g}" for v in values)])
    found = [e["metrics"].get("details", {}) for e in entries]
    for name in dict.fromkeys(name for details in found for name in details):
        scores = [details.get(name, {}) for details in found]
        kinds = {_circumstances(s) for s in scores if s.get("value") is not None}
        label = name if len(kinds) < 2 else f"{name} (not comparable: computed differently)"
        made.append([label, *map(score, scores)])
    return made


def _circumstances(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same for two scores to be compared."""
    sets = [entry.get(name, {}) for name in ("reference", "examples")]
    count = entry.get("generated", {}).get("n")
    return (entry.get("extractor"), count, *(s.get("sha256") for s in sets))


def markdown(result: dict[str, Any]) -> str:
    header, *body = rows(result)
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in body)])


def write_page(result: dict[str, Any], path: Path) -> None:
    """One self-contained HTML file."""
    header, *body = rows(result)
    sheets = "".join(
        f'<figure><img alt="samples of {html.escape(name)}" src="data:image/png;base64,'
        f'{_png(entry["samples"])}"><figcaption>{html.escape(name)}: {entry["model"]}'
        "</figcaption></figure>"
        for name, entry in result["runs"].items()
        if "samples" in entry
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
    write_atomically(path, page("Runs compared", content).encode())


def _png(images: np.ndarray) -> str:
    from PIL import Image

    sheet = sample_sheet(images)
    sheet = np.repeat(np.repeat(sheet, 2, axis=0), 2, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if sheet.shape[-1] == 1 else sheet).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
