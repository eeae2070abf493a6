"""What a run would be, before it is: shapes, parameters, memory, and a few timed updates."""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..training.loop import updates
from ..training.parameters import sizes as trained_sizes
from ..training.plan import initial_state
from .folder import RunFolder
from .resolve import resumed_settings, settings_of
from .training import data_and_model


def dry_run(
    what: str,
    out: str | PathLike[str] | None = None,
    *,
    timed: int = 5,
    say: Callable[[str], None] = lambda _: None,
    **changes: Any,
) -> dict[str, Any]:
    """Build, compile and time `timed` updates of what `kaem.train` would train; nothing is written.

    With `out`, that is the run there, continued.
    """
    if out is None:
        settings = settings_of(what, **changes)
    else:
        settings = resumed_settings(RunFolder.open(out), what, **changes)
    x, model = data_and_model(settings, say=say)
    plan = settings.plan()
    arrays = {
        jax.tree_util.keystr(path): list(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_array))
    }
    sizes = trained_sizes(model)
    state = initial_state(model, plan, len(x))
    kept = eqx.filter((state.model, state.optimiser, state.memory), eqx.is_array)
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(kept))
    prior = getattr(model, "prior", None)
    rare = replace(plan.upkeep, alignments=0, focusings=0)  # a few in a whole run
    short = replace(plan, steps=2 * timed, log_every=timed, marks=(), upkeep=rare)
    began = time.perf_counter()
    logged = (boundary for boundary in updates(state, x, short) if boundary.metrics is not None)
    marks = [time.perf_counter() for _ in logged]
    per_update = (marks[-1] - marks[-2]) / timed
    return {
        "data": {"shape": list(x.shape), "dtype": str(x.dtype)},
        "model": type(model).__name__,
        "latents": list(prior.shape) if prior is not None else None,
        "parameters": sizes | {"total": sum(sizes.values())},
        "arrays": arrays,
        "memory_mib": {
            "state": state_bytes / 2**20,
            "data": x.nbytes / 2**20 if isinstance(x, np.ndarray) else 0.0,  # or on disk
            "process_peak": peak_memory() / 2**20,
        },
        "compile_seconds": marks[-2] - began,
        "seconds_per_update": per_update,
        "estimated_seconds": per_update * settings.training.steps,
    }


def peak_memory() -> float:
    """Return the most memory that this process has had, in bytes; compiling is part of it."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux; its `ru_maxrss` would count the process that started this one
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # not on Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def render(plan: dict[str, Any]) -> str:
    """Return the plan as text, for a person."""
    sizes, memory = plan["parameters"], plan["memory_mib"]
    lines = [
        f"data        {plan['data']['shape']} {plan['data']['dtype']}",
        f"model       {plan['model']}, latents {plan['latents']}",
        f"parameters  {sizes['total']:,}: "
        + ", ".join(f"{part} {size:,}" for part, size in sizes.items() if part != "total"),
        *(f"  model{name}  {shape}" for name, shape in plan["arrays"].items()),
        f"memory      state {memory['state']:.0f} MiB, data {memory['data']:.0f} MiB, "
        f"{memory['process_peak']:.0f} MiB at most in all, compiling included",
        f"speed       {plan['seconds_per_update'] * 1e3:.1f} ms per update after "
        f"{plan['compile_seconds']:.0f} s of compiling; "
        f"about {plan['estimated_seconds'] / 60:.1f} min in all",
        "nothing was written",
    ]
    return "\n".join(lines)
