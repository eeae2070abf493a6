"""What a run would be, before it is: shapes, parameters, memory, and a few timed updates."""

import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .build import build_model, build_posterior
from .config import Config
from .loop import initial_state, parameters, updates


def dry_run(config: Config, x: np.ndarray, timed: int = 5) -> dict[str, Any]:
    """Build, compile and time `timed` updates; nothing is written."""
    model = build_model(config, x.shape[1:])
    parts = {
        jax.tree_util.keystr(path): list(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_array))
    }
    fixed = (".grid", ".domain")  # moved by grid updates or not at all, never by gradients
    trained = {n: a.size for n, a in parameters(model).items() if not n.endswith(fixed)}
    sizes = {
        part: sum(size for name, size in trained.items() if name.startswith(f".{part}"))
        for part in ("prior", "generator")
    }
    state = initial_state(model, config.optimiser, config.training.steps)
    arrays = jax.tree.leaves(eqx.filter((state.model, state.optimiser), eqx.is_array))
    state_bytes = sum(leaf.nbytes for leaf in arrays)
    q, p = model.prior.shape
    samples, batch = config.posterior.samples, config.training.batch_size
    working = (
        4
        * (
            q * p * (2 * model.prior.cells + 1) * 3  # tables and their gradient
            + q * p * samples * 2
            + 4 * (samples + batch) * int(np.prod(x.shape[1:]))
        )
    )
    short = replace(
        config,
        training=replace(
            config.training,
            steps=2 * timed,
            log_every=timed,
            checkpoint_every=timed,
            sample_every=timed,
        ),
    )
    began = time.perf_counter()
    marks = [time.perf_counter() for _ in updates(state, x, build_posterior(config), short)]
    per_update = (marks[-1] - marks[-2]) / timed
    return {
        "data": {"shape": list(x.shape), "dtype": str(x.dtype)},
        "latents": {"Q": q, "P": p},
        "parameters": sizes | {"total": sum(sizes.values())},
        "arrays": parts,
        "memory_mib": {
            "state": state_bytes / 2**20,
            "data": x.nbytes / 2**20,
            "update": (working + state_bytes) / 2**20,
        },
        "compile_seconds": marks[-2] - began,
        "seconds_per_update": per_update,
        "estimated_seconds": per_update * config.training.steps,
    }


def render(plan: dict[str, Any]) -> str:
    """The plan, for a person."""
    sizes, memory = plan["parameters"], plan["memory_mib"]
    lines = [
        f"data        {plan['data']['shape']} {plan['data']['dtype']}",
        f"latents     Q x P = {plan['latents']['Q']} x {plan['latents']['P']}",
        f"parameters  {sizes['total']:,}: prior {sizes['prior']:,}, generator {sizes['generator']:,}",
        *(f"  model{name}  {shape}" for name, shape in plan["arrays"].items()),
        f"memory      state {memory['state']:.0f} MiB, data {memory['data']:.0f} MiB, "
        f"about {memory['update']:.0f} MiB more while updating",
        f"speed       {plan['seconds_per_update'] * 1e3:.1f} ms per update after "
        f"{plan['compile_seconds']:.0f} s of compiling; "
        f"about {plan['estimated_seconds'] / 60:.1f} min in all",
        "nothing was written",
    ]
    return "\n".join(lines)
