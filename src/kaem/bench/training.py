"""Time of an update: against a plain formulation, the matrix-product peak, the rivals, and over Q.

All variants take turns in one process, so that their ratios hold on a busy machine.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..data import load
from ..drawing import BLUE, GREY, ORANGE, new_figure, save_figure
from ..measuring import interleaved
from ..models import KAEM
from ..parallel import SPLIT, WHOLE, batch_mesh, over_batch
from ..runs.comparing import markdown_table
from ..runs.timing import updater
from ..settings import Settings, merge, read_preset
from ..training.loop import updates
from ..training.plan import initial_state
from . import plain

COORDINATES = (21, 41, 61, 81, 101)
SHAPE = (32, 32, 3)
# Importance sampling against a VAE as the paper has it: as many proposals as examples.
IMPORTANCE = {"kind": "importance", "samples": 100, "resampler": "residual"}
EQUAL = {"batch_size": 100}
_GEMM = 2048
_TOGETHER = 20  # small updates, timed as training makes them: many for each dispatch


def preset(name: str, **sections: dict[str, Any]) -> Settings:
    """Return a preset with some settings changed."""
    return Settings.from_dict(merge(read_preset(name), sections))


def one_update(name: str, **sections: dict[str, Any]) -> Callable[[], Any]:
    """Return a call that makes one update of a preset at SVHN's size."""
    return updater(preset(name, **sections), SHAPE)


def after(name: str, steps: int) -> Any:
    """Return the model of a preset after so many updates on MNIST's digits."""
    settings, x = preset(name), load("mnist5k")
    plan = replace(settings.plan(), steps=steps)
    state = initial_state(settings.model(x.shape[1:]), plan, len(x))
    for boundary in updates(state, x, plan):
        state = boundary.state
    return state.model


def flops_of_decoder(model: KAEM) -> int:
    """Return the floating-point operations of one image: a multiply and an add for each tap of each pixel."""
    generator: Any = model.generator
    total = 2 * sum(weight.size for weight in (generator.projection, *generator.dense))
    pixels = model.data_shape[0] * model.data_shape[1]
    for kernel in reversed(generator.kernels):
        pixels //= 4
        total += 2 * pixels * kernel.size
    return total


def flops_of_encoded_update(settings: Settings) -> int:
    """Return the operations of an update of a model with an encoder: a forward pass and two of gradients."""
    model: Any = settings.model(SHAPE)
    total, pixels = flops_of_decoder(model) + 2 * model.encoder.head.size, SHAPE[0] * SHAPE[1]
    for kernel in model.encoder.weights:
        pixels //= 4
        total += 2 * pixels * kernel.size
    return 3 * total * settings.training.batch_size


def hot_loops(settings: Settings) -> tuple[dict[str, Any], float]:
    """Return calls that sample the posteriors of one batch, fast and plain, and their operations."""
    model, batch = settings.model(SHAPE), settings.training.batch_size
    learner: Any = settings.learner()
    x = jax.random.uniform(jax.random.key(0), (batch, *SHAPE))
    z, key = model.prior.sample(jax.random.key(1), batch), jax.random.key(2)
    steps, step_size = learner.steps, learner.step_size
    arrays, static = eqx.partition(model, eqx.is_array)

    def sample(arrays: Any, x: Any, z: Any, key: Any) -> Any:
        return learner.sample(eqx.combine(arrays, static), x, z, key)[0]

    def slow(arrays: Any, x: Any, z: Any, key: Any) -> Any:
        return plain.langevin(eqx.combine(arrays, static), x, z, key, steps, step_size)

    # Sharded over devices as in training; the plain form is what one device makes of it.
    mesh = batch_mesh(batch)
    fast = over_batch(sample, mesh, (WHOLE, SPLIT, SPLIT, WHOLE), SPLIT)
    compiled = {"hot_loop": jax.jit(fast), "plain": jax.jit(slow), "one_device": jax.jit(sample)}
    variants = {name: partial(call, arrays, x, z, key) for name, call in compiled.items()}
    return variants, 2.0 * flops_of_decoder(model) * batch * steps


def gemm() -> Callable[[], Any]:
    """Return a call that multiplies two matrices."""
    a = jax.random.normal(jax.random.key(0), (_GEMM, _GEMM))
    product = jax.jit(lambda a: a @ a)
    return lambda: product(a)


def run(repeats: int = 7) -> dict[str, Any]:
    """Time everything in turns."""
    variants: dict[str, Callable[[], Any]]
    variants, flops = hot_loops(preset("svhn-paper"))
    variants["gemm"] = gemm()
    for name in ("svhn-paper", "svhn-paper-thermo"):
        variants[f"update_{name.replace('-', '_')}"] = one_update(name)
    for q in COORDINATES:
        at_q = {"coordinates": q}
        variants[f"update_q{q}"] = one_update("svhn-paper", prior=at_q)
        equal = {"prior": at_q, "training": EQUAL}
        variants[f"importance_q{q}"] = one_update("svhn-paper", learner=IMPORTANCE, **equal)
        variants[f"vae_q{q}"] = one_update("vae-svhn-paper", **equal)
        variants[f"neural_ebm_q{q}"] = one_update("neural-ebm-svhn", prior=at_q)
    for name in ("svhn", "vae-svhn"):
        updates_of = updater(preset(name), SHAPE, _TOGETHER)
        variants[f"{_TOGETHER}_updates_{name.replace('-', '_')}"] = updates_of
    variants["vae_batch50"] = one_update("vae-svhn-paper")
    variants["ddpm"] = one_update("ddpm-svhn")
    details = interleaved(variants, repeats, least=1.0)
    median = {name: entry["median"] for name, entry in details.items()}
    peak = 2 * _GEMM**3 / median["gemm"]
    results = {
        "speedup_vs_plain": median["plain"] / median["hot_loop"],
        "speedup_vs_plain_one_device": median["plain"] / median["one_device"],
        "gemm_peak_fraction": flops / median["hot_loop"] / peak,
        "thermo10_over_single": median["update_svhn_paper_thermo"] / median["update_svhn_paper"],
        "q101_over_q21": median["update_q101"] / median["update_q21"],
        "importance_over_vae": median["importance_q81"] / median["vae_q81"],
        "kaem_over_vae": median["update_svhn_paper"] / median["vae_batch50"],
        "encoder_over_vae": median[f"{_TOGETHER}_updates_svhn"]
        / median[f"{_TOGETHER}_updates_vae_svhn"],
        "encoder_gemm_peak_fraction": _TOGETHER
        * flops_of_encoded_update(preset("svhn"))
        / median[f"{_TOGETHER}_updates_svhn"]
        / peak,
        "neural_ebm_over_kaem": median["neural_ebm_q81"] / median["update_svhn_paper"],
        "ddpm_over_vae": median["ddpm"] / median["vae_batch50"],
        "gemm_peak_gflops": peak / 1e9,
        "hot_loop_gflop": flops / 1e9,
    }
    return {"results": results, "details": details}


_PANELS = {
    "importance sampling, batches of 100": {"importance": "KAEM, 100 proposals", "vae": "VAE"},
    "40 Langevin steps, batches of 50": {"update": "KAEM", "neural_ebm": "neural EBM"},
}


def draw(details: dict[str, Any], path: Path) -> None:
    """Draw after the paper's "Training cost comparison": milliseconds over Q, DDPM as a line."""
    figure, axes = new_figure(7.2, 3.0, 1, 2)
    for axis, (title, lines) in zip(axes[0], _PANELS.items(), strict=True):
        for (name, label), colour in zip(lines.items(), (BLUE, ORANGE), strict=True):
            entries = [details[f"{name}_q{q}"] for q in COORDINATES]
            draw_medians(axis, COORDINATES, entries, 1e-3, color=colour, label=label)
        axis.set_title(title, fontsize=9)
        axis.set(xticks=COORDINATES, xlabel="latent coordinates Q")
        axis.grid(alpha=0.25, lw=0.5)
    ddpm = details["ddpm"]["median"] * 1e3
    axes[0, 1].axhline(ddpm, color=GREY, ls="--", lw=1.2, label="DDPM")
    for axis in axes[0]:
        axis.set_ylim(0, None)
        axis.legend(frameon=False, fontsize=7, loc="lower right")
    axes[0, 0].set_ylabel("milliseconds for an update")
    figure.suptitle("Training at SVHN size: medians and quartiles", fontsize=10)
    save_figure(figure, path)


def render(result: dict[str, Any]) -> str:
    """Return a table of times, then the ratios."""
    ratios = (f"{name} = {value:.3g}" for name, value in result["results"].items())
    return "\n".join([table(result["details"]), "", *ratios])


def draw_medians(axis: Any, x: Any, entries: list[Any], unit: float, **style: Any) -> None:
    """Draw a line of medians with their quartiles, in multiples of `unit` seconds."""
    middle = np.array([entry["median"] for entry in entries]) / unit
    ends = np.array([[e["lower_quartile"], e["upper_quartile"]] for e in entries]).T / unit
    axis.errorbar(x, middle, np.abs(ends - middle), marker="o", ms=4, capsize=3, lw=1.2, **style)


def table(details: dict[str, dict[str, Any]]) -> str:
    """Return a table of medians and quartiles, in milliseconds."""
    rows = [["what", "median ms", "quartiles"]]
    for name, entry in details.items():
        low, high = entry["lower_quartile"] * 1e3, entry["upper_quartile"] * 1e3
        rows.append([name, f"{entry['median'] * 1e3:.1f}", f"{low:.1f} to {high:.1f}"])
    return markdown_table(rows)
