"""Time to draw images: KAEM in three ways against its rivals, across Q, at batch 1 and 100.

All variants take turns in one process. Weights are untrained: what a sample costs does not depend
on them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx

from ..drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, new_figure, save_figure
from ..measuring import interleaved
from ..runs.comparing import markdown_table
from ..runs.timing import sampler
from .training import COORDINATES, SHAPE, draw_medians, preset

PAPER_Q = 81
DENOISING = 4  # steps of the diffusion sampler that are timed: all 1000 are alike
_LABELS = {
    "kaem": "KAEM, cached tables",
    "kaem_rebuilt": "KAEM, tables rebuilt",
    "kaem_paper": "KAEM, the paper's algorithm",
    "vae": "VAE",
    "neural_ebm": "neural EBM, 60 steps",
}


def models(q: int) -> dict[str, Any]:
    """Return KAEM in three ways, and the rivals with a latent prior, at latent size `q`."""

    def made(name: str, **more: str) -> Any:
        return preset(name, prior={"coordinates": q} | more).model(SHAPE).prepared()

    def rebuilding(model: Any) -> Any:
        return eqx.tree_at(lambda m: m.prior, model, model.prior.uncache())

    kaem = made("svhn-paper")
    return {
        "kaem": kaem,
        "kaem_rebuilt": rebuilding(kaem),
        "kaem_paper": rebuilding(made("svhn-paper", inverse_transform="paper")),
        "vae": made("vae-svhn-paper"),
        "neural_ebm": made("neural-ebm-svhn"),
    }


def run(repeats: int = 7) -> dict[str, Any]:
    """Time all samplers in turns."""
    variants: dict[str, Callable[[], Any]] = {}
    for q in COORDINATES:
        for name, model in models(q).items():
            variants[f"{name}_q{q}"] = sampler(model, 100)
            if q == PAPER_Q:
                variants[f"{name}_batch1"] = sampler(model, 1)
    short, factor = preset("ddpm-svhn").model(SHAPE).faster(DENOISING)
    for batch in (1, 100):
        variants[f"ddpm_{DENOISING}_steps_batch{batch}"] = sampler(short, batch)
    details = interleaved(variants, repeats, least=0.1)
    for batch in (1, 100):
        timed = details[f"ddpm_{DENOISING}_steps_batch{batch}"]
        scaled = {k: v * factor for k, v in timed.items() if k != "times"}
        details[f"ddpm_batch{batch}"] = scaled | {"extrapolated_from_steps": DENOISING}
    for name in _LABELS:
        details[f"{name}_batch100"] = details[f"{name}_q{PAPER_Q}"]
    medians = {name: entry["median"] for name, entry in details.items()}
    return {"results": results(medians), "details": details}


def results(median: dict[str, float]) -> dict[str, float]:
    """Return ratios at Q = 81; where no batch is named, at 100 images."""
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


def draw(details: dict[str, Any], path: Path) -> None:
    """Draw after the paper's "Sampling times": milliseconds over Q, the diffusion model as a line."""
    figure, axes = new_figure(5.2, 3.6)
    axis = axes[0, 0]
    colours = (BLUE, SKY, PURPLE, GREEN, ORANGE)
    for (name, label), colour in zip(_LABELS.items(), colours, strict=True):
        entries = [details[f"{name}_q{q}"] for q in COORDINATES]
        draw_medians(axis, COORDINATES, entries, 1e-3, color=colour, label=label)
    ddpm = details["ddpm_batch100"]["median"] * 1e3
    axis.axhline(ddpm, color=GREY, ls="--", lw=1.2, label="DDPM, 1000 steps")
    axis.set(yscale="log", xticks=COORDINATES, xlabel="latent coordinates Q")
    axis.set_ylabel("milliseconds for 100 images")
    axis.set_title("Sampling at SVHN size: medians and quartiles", fontsize=9)
    axis.grid(alpha=0.25, lw=0.5)
    axis.legend(frameon=False, fontsize=7, loc="center right")
    save_figure(figure, path)


def render(result: dict[str, Any]) -> str:
    """Return a table in Markdown, then the ratios."""
    details = result["details"]
    rows = [["sampler", "100 images, ms", "quartiles", "1 image, ms", "quartiles"]]
    for name, label in {**_LABELS, "ddpm": f"DDPM, 1000 steps ({DENOISING} timed)"}.items():
        cells = [label]
        for batch in (100, 1):
            entry = details[f"{name}_batch{batch}"]
            low, high = entry["lower_quartile"] * 1e3, entry["upper_quartile"] * 1e3
            cells += [f"{entry['median'] * 1e3:.3g}", f"{low:.3g} to {high:.3g}"]
        rows.append(cells)
    ratios = (f"{name} = {value:.4g}" for name, value in result["results"].items())
    return "\n".join([markdown_table(rows), "", *ratios])
