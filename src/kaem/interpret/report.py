"""One self-contained HTML page about a run: no network, no scripts."""

import base64
import html
import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import jax

from ..data.sheets import is_image, sample_sheet, save_png
from ..model import KAEM, AbstractModel
from ..serialisation import load, write_atomically
from ..training.run import Run
from .figures import density_sheet, training_curves

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{margin-bottom:.2rem}h2{margin-top:2rem;border-bottom:1px solid #ddd}
img{max-width:100%;height:auto}figure{margin:1rem 0}figcaption{color:#555;font-size:.9rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
code,pre{font:14px/1.4 ui-monospace,monospace;background:#f5f5f5;border-radius:3px;padding:.1rem .3rem}
pre{padding:.6rem;overflow:auto}
.side{display:flex;flex-wrap:wrap;gap:1rem}.side figure{flex:1 1 16rem;max-width:30rem;margin:0}
.wide{overflow-x:auto}
@media print{body{max-width:none;margin:0}h2{break-after:avoid}figure{break-inside:avoid}}
"""


def _figure(path: Path, caption: str) -> str:
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def page(title: str, body: str) -> str:
    """A whole HTML document."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def table(header: list[str], body: list[list[str]]) -> str:
    """A table whose first column names its rows."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    head = head and f"<tr>{head}</tr>"
    lines = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in body
    )
    return f'<div class="wide"><table>{head}{lines}</table></div>'


def _learning(kind: str, settings: dict[str, Any], last: dict[str, Any]) -> list[tuple[str, str]]:
    """How it learned, and how far it got."""
    if kind == "DDPM":
        d, error = settings["ddpm"], last.get("denoising_error", nan)
        steps = d["sampling_steps"] or d["timesteps"]
        return [
            ("sampler", f"{d['sampler']}, {steps} steps of the UNet"),
            ("squared error of the noise", f"{error:.4f}"),
        ]
    facts = [
        ("generator", settings["generator"]["kind"]),
        ("log-likelihood", f"{last.get('log_likelihood', nan):.1f} nats per example"),
    ]
    if kind == "VAE":
        kl, error = last.get("kl", nan), last.get("reconstruction", nan)
        facts.append(("encoder", f"KL {kl:.1f} nats; squared error of a pixel {error:.4f}"))
        return facts
    return [*facts, _sampling(settings["posterior"], last)]


def _sampling(posterior: dict[str, Any], last: dict[str, Any]) -> tuple[str, str]:
    """One line on how the posterior was sampled, and how well."""
    if posterior["kind"] == "importance":
        return "effective sample size", f"{last.get('ess', nan):.1f} of {posterior['samples']}"
    chains = "persistent" if posterior["persistent"] else "cold"
    text = f"{posterior['steps']} {posterior['kind'].upper()} steps, {chains} chains"
    if posterior["criterion"] == "thermodynamic":
        text += f", {posterior['temperatures']} power posteriors"
    return "posterior", f"{text}; squared error of a pixel {last.get('reconstruction', nan):.4f}"


_ABOUT = {
    "KAEM": "A Kolmogorov-Arnold energy model: its prior is a product of the one-dimensional densities below.",
    "VAE": "A variational autoencoder: a standard normal prior, a decoder, and an encoder.",
    "NeuralEBM": "A neural latent energy model: its prior is a network, sampled by Langevin chains.",
    "DDPM": "A denoising diffusion model in pixel space: every sample is a chain of denoising steps.",
}


def _prior_facts(model: KAEM, settings: dict[str, Any]) -> list[tuple[str, str]]:
    summary = model.prior.summary()
    q, p = model.prior.energies.shape
    what = f"{q} mixtures of {p}" if len(model.prior.shape) == 1 else f"{q} x {p}"
    error, departure = float(model.prior.table_error().max()), summary.departure
    return [
        (
            "prior",
            f"{what} {settings['prior']['basis']} densities, reference {model.prior.reference}",
        ),
        ("tables", f"{model.prior.cells} cells, estimated CDF error {error:.1e}"),
        (
            "departure",
            f"KL from the reference: mean {float(departure.mean()):.3g}, "
            f"largest {float(departure.max()):.3g} nats",
        ),
    ]


def write_report(run: Run, model: AbstractModel, path: Path) -> None:
    """What was trained on what, what it makes, what it learned, and how to repeat it."""
    record, history = run.record(), run.history()
    last = history[-1] if history else {}
    settings = record["settings"]
    kind = type(model).__name__
    facts = [
        ("model", kind),
        ("trained", f"{record['what']}, {last.get('step', 0):,} updates, {record['created']}"),
        ("time", f"{last.get('seconds', 0):.0f} s of training in the last session"),
        ("data", f"{settings['data']['name']}: {record['data']['shape']}"),
        *(_prior_facts(model, settings) if isinstance(model, KAEM) else ()),
        *_learning(kind, settings, last),
        ("versions", ", ".join(f"{k} {v}" for k, v in record["versions"].items())),
    ]
    assignments = json.dumps(settings, indent=2)
    body = "".join(
        [
            f"<h1>{html.escape(run.path.resolve().name)}</h1>",
            f"<p>{_ABOUT[kind]}</p>",
            table([], [[name, str(value)] for name, value in facts]),
            "<h2>Samples</h2>",
            _figure(run.figures / "samples.png", "100 samples"),
            "<h2>What the prior learned</h2>" if isinstance(model, KAEM) else "",
            _figure(
                run.figures / "densities.png",
                "Learned densities (shaded) against the reference (dashed), ordered by how far they moved",
            ),
            "<h2>Training</h2>",
            _figure(run.figures / "training.png", "What was logged during training"),
            "<h2>To repeat it</h2>",
            f"<pre>kaem train {html.escape(record['what'])} --config config.json --seed {settings['training']['seed']}</pre>",
            f"<details><summary>All settings</summary><pre>{html.escape(assignments)}</pre></details>",
        ]
    )
    write_atomically(path, page(f"{run.path.resolve().name} - KAEM run", body).encode())


def finish(run: Run, say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Samples, figures and the report of a finished run."""
    model = load(run.model_file)
    written = []
    if is_image(model.data_shape):
        key = jax.random.key(run.config().training.seed)
        written.append(run.figures / "samples.png")
        save_png(written[-1], sample_sheet(model.sample(key, 100)))
    if isinstance(model, KAEM):
        written.append(run.figures / "densities.png")
        density_sheet(model.prior, written[-1])
    written.append(run.figures / "training.png")
    training_curves(run.history(), written[-1])
    written.append(run.path / "report.html")
    write_report(run, model, written[-1])
    for path in written:
        say(f"wrote {path}")
    return written
