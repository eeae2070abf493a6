"""What a run would be, before it is: shapes, parameters, memory, and a few timed updates."""

import resource
import sys
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
    posterior = build_posterior(config)
    state = initial_state(model, posterior, config, len(x))
    arrays = eqx.filter((state.model, state.optimiser, state.memory), eqx.is_array)
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    q, p = model.prior.energies.shape
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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    marks = [time.perf_counter() for _ in updates(state, x, posterior, short)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    per_update = (marks[-1] - marks[-2]) / timed
    return {
        "data": {"shape": list(x.shape), "dtype": str(x.dtype)},
        "latents": {"Q": q, "P": p},
        "parameters": sizes | {"total": sum(sizes.values())},
        "arrays": parts,
        "memory_mib": {
            "state": state_bytes / 2**20,
            "data": x.nbytes / 2**20,
            "update": grown / (2**20 if sys.platform == "darwin" else 2**10),
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
        f"energies    Q x P = {plan['latents']['Q']} x {plan['latents']['P']}",
        f"parameters  {sizes['total']:,}: prior {sizes['prior']:,}, generator {sizes['generator']:,}",
        *(f"  model{name}  {shape}" for name, shape in plan["arrays"].items()),
        f"memory      state {memory['state']:.0f} MiB, data {memory['data']:.0f} MiB, "
        f"{memory['update']:.0f} MiB more while updating",
        f"speed       {plan['seconds_per_update'] * 1e3:.1f} ms per update after "
        f"{plan['compile_seconds']:.0f} s of compiling; "
        f"about {plan['estimated_seconds'] / 60:.1f} min in all",
        "nothing was written",
    ]
    return "\n".join(lines)
