"""Time of an update: against a plain formulation, the matrix-product peak, the rivals, and over Q.

All variants take turns in one process, so that their ratios hold on a busy machine.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..model import KAEM
from ..parallel import SPLIT, WHOLE, batch_mesh, over_batch
from ..posterior import Langevin
from ..training.build import build_model, build_posterior
from ..training.config import Config, read_preset
from ..training.loop import Dispatch, batch_indices, initial_state
from . import plain
from .measure import draw_medians, interleaved

COORDINATES = (21, 41, 61, 81, 101)
# Importance sampling against a VAE as the paper has it: as many proposals as examples.
IMPORTANCE = {"kind": "importance", "samples": 100, "resampler": "residual"}
EQUAL = {"batch_size": 100}
_GEMM = 2048
_SHAPE = (32, 32, 3)


def preset(name: str, **sections: dict[str, Any]) -> Config:
    """A preset with some settings changed, logging after every update."""
    config = Config.from_dict(read_preset(name))
    for section, values in sections.items():
        config = replace(config, **{section: replace(getattr(config, section), **values)})
    return replace(config, training=replace(config.training, log_every=1))


def updater(config: Config, shape: tuple[int, ...] = _SHAPE) -> Callable[[], Any]:
    """A call that makes one update, exactly as training does, each from where the last one ended."""
    data = np.random.default_rng(0).integers(
        0, 256, (max(1000, config.training.batch_size), *shape), dtype=np.uint8
    )
    model, posterior = build_model(config, shape), build_posterior(config)
    dispatch = Dispatch(config, posterior, model)
    held = [initial_state(model, posterior, config, len(data))]
    device_data, key = jnp.asarray(data), jax.random.key(0)

    def call() -> Any:
        state = held[0]
        indices = batch_indices(len(data), config.training, state.step, state.step + 1)
        held[0], _, _ = dispatch(state, device_data, indices, key)
        return held[0].optimiser

    return call


def flops_of_decoder(model: KAEM) -> int:
    """Floating-point operations of one image: a multiply and an add for each tap of each pixel."""
    generator: Any = model.generator
    total = 2 * generator.projection.size
    pixels = model.data_shape[0] * model.data_shape[1]
    for kernel in reversed(generator.kernels):
        pixels //= 4
        total += 2 * pixels * kernel.size
    return total


def hot_loops(config: Config) -> tuple[dict[str, Any], float]:
    """The posterior sampling of one batch, fast and plain, and its floating-point operations."""
    model = build_model(config, _SHAPE)
    p, batch = config.posterior, config.training.batch_size
    x = jax.random.uniform(jax.random.key(0), (batch, *_SHAPE))
    z, key = model.prior.sample(jax.random.key(1), batch), jax.random.key(2)
    langevin = Langevin(p.steps, p.step_size)
    arrays, static = eqx.partition(model, eqx.is_array)

    def sample(arrays: Any, x: Any, z: Any, key: Any) -> Any:
        return langevin.sample(eqx.combine(arrays, static), x, z, key)[0]

    def slow(arrays: Any, x: Any, z: Any, key: Any) -> Any:
        return plain.langevin(eqx.combine(arrays, static), x, z, key, p.steps, p.step_size)

    # Sharded over devices as in training; the plain form is what one device makes of it.
    mesh = batch_mesh(batch)
    fast = over_batch(sample, mesh, 3, (WHOLE, SPLIT, SPLIT, WHOLE), SPLIT)
    compiled = {"hot_loop": jax.jit(fast), "plain": jax.jit(slow), "one_device": jax.jit(sample)}
    variants = {name: partial(call, arrays, x, z, key) for name, call in compiled.items()}
    return variants, 2.0 * flops_of_decoder(model) * batch * p.steps


def gemm() -> Callable[[], Any]:
    a = jax.random.normal(jax.random.key(0), (_GEMM, _GEMM))
    product = jax.jit(lambda a: a @ a)
    return lambda: product(a)


def run(options: argparse.Namespace) -> dict[str, Any]:
    variants: dict[str, Callable[[], Any]]
    variants, flops = hot_loops(preset("svhn"))
    variants["gemm"] = gemm()
    variants["update_svhn"] = updater(preset("svhn"))
    variants["update_svhn_fast"] = updater(preset("svhn-fast"))
    variants["update_svhn_thermo"] = updater(preset("svhn-thermo"))
    for q in COORDINATES:
        at_q = {"coordinates": q}
        variants[f"update_q{q}"] = updater(preset("svhn", prior=at_q))
        variants[f"importance_q{q}"] = updater(
            preset("svhn", prior=at_q, posterior=IMPORTANCE, training=EQUAL)
        )
        variants[f"vae_q{q}"] = updater(preset("vae-svhn", prior=at_q, training=EQUAL))
        variants[f"neural_ebm_q{q}"] = updater(preset("neural-ebm-svhn", prior=at_q))
    variants["vae_batch50"] = updater(preset("vae-svhn"))
    variants["ddpm"] = updater(preset("ddpm-svhn"))
    details = interleaved(variants, options.repeats, least=1.0)
    median = {name: entry["median"] for name, entry in details.items()}
    peak = 2 * _GEMM**3 / median["gemm"]
    results = {
        "speedup_vs_plain": median["plain"] / median["hot_loop"],
        "speedup_vs_plain_one_device": median["plain"] / median["one_device"],
        "gemm_peak_fraction": flops / median["hot_loop"] / peak,
        "thermo10_over_single": median["update_svhn_thermo"] / median["update_svhn"],
        "fast_over_paper": median["update_svhn_fast"] / median["update_svhn"],
        "q101_over_q21": median["update_q101"] / median["update_q21"],
        "importance_over_vae": median["importance_q81"] / median["vae_q81"],
        "kaem_over_vae": median["update_svhn"] / median["vae_batch50"],
        "neural_ebm_over_kaem": median["neural_ebm_q81"] / median["update_svhn"],
        "ddpm_over_vae": median["ddpm"] / median["vae_batch50"],
        "gemm_peak_gflops": peak / 1e9,
        "hot_loop_gflop": flops / 1e9,
    }
    result = {"benchmark": "training", "results": results, "details": details}
    if options.figure:
        _figure(details, Path(options.figure))
    return result


_PANELS = (
    (
        "importance sampling, batches of 100",
        {"importance": "KAEM, 100 proposals", "vae": "VAE"},
    ),
    (
        "40 Langevin steps, batches of 50",
        {"update": "KAEM", "neural_ebm": "neural EBM"},
    ),
)


def _figure(details: dict[str, Any], path: Path) -> None:
    """After the paper's "Training cost comparison": milliseconds over Q, DDPM as a line."""
    from ..interpret.figures import BLUE, GREY, ORANGE, new_figure, save_figure

    figure, axes = new_figure(7.2, 3.0, 1, 2)
    for axis, (title, lines) in zip(axes[0], _PANELS, strict=True):
        for (name, label), colour in zip(lines.items(), (BLUE, ORANGE), strict=True):
            entries = [details[f"{name}_q{q}"] for q in COORDINATES]
            draw_medians(axis, COORDINATES, entries, 1e-3, color=colour, label=label)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(COORDINATES)
        axis.set_xlabel("latent coordinates Q")
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
    lines = ["| what | median ms | quartiles |", "|---|---|---|"]
    for name, entry in result["details"].items():
        low, high = entry["lower_quartile"] * 1e3, entry["upper_quartile"] * 1e3
        lines.append(f"| {name} | {entry['median'] * 1e3:.1f} | {low:.1f} to {high:.1f} |")
    lines += ["", *(f"{name} = {value:.3g}" for name, value in result["results"].items())]
    return "\n".join(lines)
