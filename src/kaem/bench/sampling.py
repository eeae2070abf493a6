"""Time to draw images: KAEM in three ways against its rivals, across Q, at batch 1 and 100.

All variants take turns in one process. Weights are untrained: what a sample costs does not depend
on them.
"""

import argparse
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from ..training.build import build_model
from ..training.config import Config, read_preset
from .measure import draw_medians, interleaved
from .training import COORDINATES, preset

SHAPE = (32, 32, 3)
PAPER_Q = 81
DENOISING = 4  # steps of the diffusion sampler that are timed: all 1000 are alike
_LABELS = {
    "kaem": "KAEM, cached tables",
    "kaem_rebuilt": "KAEM, tables rebuilt",
    "kaem_paper": "KAEM, the paper's algorithm",
    "vae": "VAE",
    "neural_ebm": "neural EBM, 60 steps",
}


def sampler(model: Any, batch: int) -> Callable[[], Any]:
    """A call that draws `batch` images, as `model.sample` does, with a new key each time."""
    arrays, static = eqx.partition(model, eqx.is_array)
    draw = jax.jit(lambda arrays, key: eqx.combine(arrays, static).sample(key, batch))
    keys = cycle(list(jax.random.split(jax.random.key(0), 100)))
    return lambda: draw(arrays, next(keys))


def models(q: int) -> dict[str, Any]:
    """KAEM in three ways, and the rivals with a latent prior, at latent size `q`."""
    at_q = {"coordinates": q}
    paper = {"inverse_transform": "paper"}

    def made(name: str, **more: str) -> Any:
        return build_model(preset(name, prior=at_q | more), SHAPE).prepared()

    def rebuilding(model: Any) -> Any:
        return eqx.tree_at(lambda m: m.prior, model, model.prior.uncache())

    kaem = made("svhn")
    return {
        "kaem": kaem,
        "kaem_rebuilt": rebuilding(kaem),
        "kaem_paper": rebuilding(made("svhn", **paper)),
        "vae": made("vae-svhn"),
        "neural_ebm": made("neural-ebm-svhn"),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    variants: dict[str, Callable[[], Any]] = {}
    for q in COORDINATES:
        for name, model in models(q).items():
            variants[f"{name}_q{q}"] = sampler(model, 100)
            if q == PAPER_Q:
                variants[f"{name}_batch1"] = sampler(model, 1)
    config = Config.from_dict(read_preset("ddpm-svhn"))
    steps = config.ddpm.timesteps
    short = preset("ddpm-svhn", ddpm={"sampling_steps": DENOISING})
    for batch in (1, 100):
        variants[f"ddpm_{DENOISING}_steps_batch{batch}"] = sampler(build_model(short, SHAPE), batch)
    details = interleaved(variants, options.repeats, least=0.1)
    for batch in (1, 100):
        timed = details[f"ddpm_{DENOISING}_steps_batch{batch}"]
        scaled = {k: v * steps / DENOISING for k, v in timed.items() if k != "times"}
        details[f"ddpm_batch{batch}"] = scaled | {"extrapolated_from_steps": DENOISING}
    for name in _LABELS:
        details[f"{name}_batch100"] = details[f"{name}_q{PAPER_Q}"]
    result = {
        "benchmark": "sampling",
        "results": results({name: entry["median"] for name, entry in details.items()}),
        "details": details,
    }
    if options.figure:
        _figure(details, Path(options.figure))
    return result


def results(median: dict[str, float]) -> dict[str, float]:
    """Ratios at Q = 81; where no batch is named, at 100 images."""
    kaem = median["kaem_batch100"]
    return {
        "kaem_over_vae_batch1": median["kaem_batch1"] / median["vae_batch1"],
        "kaem_over_vae_batch100": kaem / median["vae_batch100"],
        "neural_ebm_over_kaem": median["neural_ebm_batch100"] / kaem,
        "neural_ebm_over_kaem_batch1": median["neural_ebm_batch1"] / median["kaem_batch1"],
        "ddpm_over_kaem": median["ddpm_batch100"] / kaem,
        "ddpm_over_kaem_batch1": median["ddpm_batch1"] / median["kaem_batch1"],
        "paper_algorithm_over_cached": median["kaem_paper_batch100"] / kaem,
        "rebuilt_over_cached": median["kaem_rebuilt_batch100"] / kaem,
        "kaem_milliseconds_batch100": kaem * 1e3,
    }


def _figure(details: dict[str, Any], path: Path) -> None:
    """After the paper's "Sampling times": milliseconds over Q, the diffusion model as a line."""
    from ..interpret.figures import BLUE, GREY, ORANGE, new_figure, save_figure

    made, axes = new_figure(5.2, 3.6)
    axis = axes[0, 0]
    colours = (BLUE, "#56B4E9", "#CC79A7", "#009E73", ORANGE)
    for (name, label), colour in zip(_LABELS.items(), colours, strict=True):
        entries = [details[f"{name}_q{q}"] for q in COORDINATES]
        draw_medians(axis, COORDINATES, entries, 1e-3, color=colour, label=label)
    ddpm = details["ddpm_batch100"]["median"] * 1e3
    axis.axhline(ddpm, color=GREY, ls="--", lw=1.2, label="DDPM, 1000 steps")
    axis.set_yscale("log")
    axis.set_xticks(COORDINATES)
    axis.set_xlabel("latent coordinates Q")
    axis.set_ylabel("milliseconds for 100 images")
    axis.set_title("Sampling at SVHN size: medians and quartiles", fontsize=9)
    axis.grid(alpha=0.25, lw=0.5)
    axis.legend(frameon=False, fontsize=7, loc="center right")
    save_figure(made, path)


def render(result: dict[str, Any]) -> str:
    """A Markdown table, then the ratios."""
    details = result["details"]
    lines = [
        "| sampler | 100 images, ms | quartiles | 1 image, ms | quartiles |",
        "|---|---|---|---|---|",
    ]
    for name, label in {**_LABELS, "ddpm": f"DDPM, 1000 steps ({DENOISING} timed)"}.items():
        cells = []
        for batch in (100, 1):
            entry = details[f"{name}_batch{batch}"]
            low, high = entry["lower_quartile"] * 1e3, entry["upper_quartile"] * 1e3
            cells += [f"{entry['median'] * 1e3:.3g}", f"{low:.3g} to {high:.3g}"]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += ["", *(f"{name} = {value:.4g}" for name, value in result["results"].items())]
    return "\n".join(lines)
