"""Checkpoints: the full training state in one `safetensors` file, written atomically.

A checkpoint is a folder that appears by renaming, so it is whole or absent; the newest readable
one is the one resumed from.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from ..errors import UserError
from ..files import write_atomically
from ..model import KAEM
from .loop import State


def _leaves(state: State) -> list[tuple[str, Any]]:
    tree = (eqx.filter(state.model, eqx.is_array), state.optimiser, state.memory)
    return [
        (f"{number:05d}{jax.tree_util.keystr(path)}", leaf)
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree))
    ]


def write(folder: Path, state: State, keep: int) -> None:
    """Save `state` as `folder/STEP/` and drop all but the newest `keep`."""
    arrays = {name: np.asarray(leaf) for name, leaf in _leaves(state)}
    header = {"step": str(state.step)}
    if isinstance(state.model, KAEM):
        header["cells"] = str(state.model.prior.cells)
    final = folder / f"{state.step:08d}"
    temporary = folder / f".{state.step:08d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write_atomically(temporary / "state.safetensors", to_bytes(arrays, header))
        if final.exists():
            shutil.rmtree(final)
        os.replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"{old:08d}", ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in `folder`, ascending."""
    names = (p.name for p in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name) for name in names if name.isdigit())


def read(folder: Path, template: State) -> tuple[State, list[str]]:
    """The newest readable checkpoint, in the structure of `template`, and notes on bad ones.

    Without any checkpoint this is the template itself: the run was killed before its first.
    """
    notes: list[str] = []
    for step in reversed(steps(folder)):
        path = folder / f"{step:08d}" / "state.safetensors"
        try:
            return _read_one(path, template), notes
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            notes.append(f"checkpoint {path} is not readable ({error})")
    if notes:
        raise UserError(
            f"no checkpoint in {folder} is readable: {'; '.join(notes)}. Start a new run."
        )
    return template, notes


def _read_one(path: Path, template: State) -> State:
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() or {}
        model = template.model
        if isinstance(model, KAEM):
            prior = model.prior.with_cells(int(header["cells"]))
            model = eqx.tree_at(lambda m: m.prior, model, prior)
        state = State(int(header["step"]), model, template.optimiser, template.memory)
        values = []
        for name, leaf in _leaves(state):
            value = file.get_tensor(name)
            if value.shape != leaf.shape or value.dtype != leaf.dtype:
                raise ValueError(f"{name} is {value.dtype}{list(value.shape)}")
            values.append(jnp.asarray(value))
    arrays, static = eqx.partition(state.model, eqx.is_array)
    structure = jax.tree.structure((arrays, state.optimiser, state.memory))
    arrays, optimiser, memory = jax.tree.unflatten(structure, values)
    return State(state.step, eqx.combine(arrays, static), optimiser, memory)
