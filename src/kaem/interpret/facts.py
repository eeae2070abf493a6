"""What was trained on what, how long and how far, in words."""

from itertools import pairwise
from math import nan
from typing import Any

from ..model import KAEM, AbstractModel
from ..training.run import Run


def training_seconds(history: list[dict[str, Any]]) -> float:
    """Of all sessions: the clock of the history starts again with each."""
    seconds = [record.get("seconds", 0) for record in history]
    ends = [a for a, b in pairwise(seconds) if b < a]
    return sum(ends) + (seconds[-1] if seconds else 0)


def facts(run: Run, model: AbstractModel) -> list[tuple[str, str]]:
    """Rows of a table: a name and what is so called."""
    record, history = run.record(), run.history()
    last = history[-1] if history else {}
    settings = record["settings"]
    kind = type(model).__name__
    found = [
        ("model", kind),
        ("trained", f"{record['what']}, {last.get('step', 0):,} updates, {record['created']}"),
        ("time", f"{training_seconds(history):,.0f} s of training"),
        ("data", f"{settings['data']['name']}: {record['data']['shape']}"),
    ]
    if started := settings["model"].get("start") or settings["prior"].get("start"):
        how = "goes on from" if settings["model"].get("start") else "prior taken over from"
        kept = ", and left as it was" if settings["prior"].get("frozen") else ""
        found.append(("start", f"{how} {started}{kept}"))
    if isinstance(model, KAEM):
        found += _prior(model, settings)
    found += _learning(kind, settings, last)
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return [*found, ("versions", versions)]


ABOUT = {
    "KAEM": "A Kolmogorov-Arnold energy model: its prior is a product of the one-dimensional densities below.",
    "VAE": "A variational autoencoder: a standard normal prior, a decoder, and an encoder.",
    "NeuralEBM": "A neural latent energy model: its prior is a network, sampled by Langevin chains.",
    "DDPM": "A denoising diffusion model in pixel space: every sample is a chain of denoising steps.",
}


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


def _prior(model: KAEM, settings: dict[str, Any]) -> list[tuple[str, str]]:
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
