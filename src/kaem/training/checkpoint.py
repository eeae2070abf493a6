"""Checkpoints: the full training state in one `safetensors` file, written atomically.

A checkpoint is a folder that appears by renaming, so it is whole or absent; the newest readable
one is the one resumed from.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

from ..errors import UserError
from ..files import check_seal, not_written, sealed, write_atomically
from ..processes import agreed, told
from .plan import State


def _leaves(state: State) -> list[tuple[str, Any]]:
    tree = (eqx.filter(state.model, eqx.is_array), state.optimiser, state.memory)
    return [
        (f"{number:05d}{jax.tree_util.keystr(path)}", leaf)
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree))
    ]


def _path(name: str) -> str:
    return name[name.index("[") :]


def _header(state: State) -> dict[str, str]:
    """Return what is to be known of a state beside its arrays."""
    between = {"sums": state.sums, "logged": state.logged, "rates": state.rates}
    return {"step": str(state.step), "loop": json.dumps(between), **state.model.form()}


def _formed(template: State, header: dict[str, str]) -> State:
    """Return a state as a header describes it, with the arrays of `template`."""
    step = int(header["step"])
    between = json.loads(header.get("loop", json.dumps({"logged": step})))  # older ones: none
    sums, logged, rates = between.get("sums", {}), between.get("logged"), between.get("rates", 1.0)
    sound = isinstance(sums, dict) and all(type(total) in (int, float) for total in sums.values())
    if not sound or not (type(logged) is int and 0 <= logged <= step):
        raise ValueError("what it says of the steps since the last record makes no sense")
    if type(rates) not in (int, float) or not 0 < rates <= 1:
        raise ValueError("what it says of the learning rates makes no sense")
    return replace(template, step=step, model=template.model.with_form(header), **between)


def _filled(state: State, values: list[Any]) -> State:
    """Return the state with these arrays, in the order of `_leaves`."""
    parts, static = eqx.partition(state.model, eqx.is_array)
    structure = jax.tree.structure((parts, state.optimiser, state.memory))
    parts, optimiser, memory = jax.tree.unflatten(structure, values)
    return replace(state, model=eqx.combine(parts, static), optimiser=optimiser, memory=memory)


def shared(state: State) -> State:
    """Return the state of the first process; others give one that is of the same settings and data."""
    header = json.loads(told(json.dumps(_header(state)).encode()))
    state = _formed(state, header)
    return _filled(state, [jnp.asarray(agreed(leaf), leaf.dtype) for _, leaf in _leaves(state)])


def write(folder: Path, state: State, keep: int, run: str | None = None, every: int = 1) -> None:
    """Save `state` of a `run` as `folder/STEP/` and drop all but the newest `keep`.

    Those of steps that are no multiples of `every`, where training stopped, go with the next that is:
    which ones there are does not depend on interruptions.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in _leaves(state)}
    header = _header(state)
    if run is not None:
        header["run"] = run
    final = folder / f"{state.step:08d}"
    temporary, earlier = (folder / f".{state.step:08d}.{end}" for end in ("tmp", "old"))
    for left in (temporary, earlier):  # by a kill, or a link that somebody put there
        left.unlink() if left.is_symlink() else shutil.rmtree(left, ignore_errors=True)
    try:
        write_atomically(temporary / "state.safetensors", sealed(to_bytes(arrays, header)))
        if final.exists():  # of the same step: moved aside first, so that a kill leaves one of them
            os.replace(final, earlier)
        os.replace(temporary, final)
    except OSError as error:
        raise not_written(final, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)
    # Newer ones, if they could not be read, are for training to pass; they do not count.
    there = [step for step in steps(folder) if step <= state.step]
    kept = {*[step for step in there if step % every == 0][-keep:], state.step}
    for old in set(there) - kept:
        remove(folder, old)


def tidy(folder: Path) -> None:
    """Put back what a kill between two renames left aside, and remove the rest of what kills leave."""
    for aside in sorted(folder.glob(".*.old")) + sorted(folder.glob(".*.tmp")):
        final = folder / aside.name.split(".")[1]
        if aside.is_symlink() or not re.fullmatch("[0-9]{8,18}", final.name):
            continue  # not ours
        if aside.suffix == ".old" and not final.exists():
            os.replace(aside, final)
        else:
            shutil.rmtree(aside, ignore_errors=True)


def remove(folder: Path, step: int) -> None:
    """Remove the checkpoint of a step, if it is there."""
    shutil.rmtree(folder / f"{step:08d}", ignore_errors=True)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Of the content of all arrays, which is all that older checkpoints have a digest of."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in `folder`, ascending."""
    names = (p.name for p in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{8}|[1-9][0-9]{8,17}", name))


def read(
    folder: Path, template: State, run: str | None = None, among: list[int] | None = None
) -> tuple[State, list[str]]:
    """Return the newest readable checkpoint, in the structure of `template`, and notes on bad ones.

    Without any checkpoint this is the template itself: the run was killed before its first. Those that
    say that they are of another `run` are bad. `among` are the steps to look at, by default all.
    """
    notes: list[str] = []
    for step in reversed(steps(folder) if among is None else among):
        path = folder / f"{step:08d}" / "state.safetensors"
        try:
            return _read_one(path, template, step, run), notes
        except Exception as error:  # an altered file can make anything fail
            notes.append(f"checkpoint {path} cannot be used ({error})")
    if notes:
        raise UserError(
            f"no checkpoint in {folder} can be used: {'; '.join(notes)}. Start a new run, or go on from "
            f"the model in a new one with `kaem train {folder.parent} --finetune KIND --out NEW`."
        )
    return template, notes


def _read_one(path: Path, template: State, step: int, run: str | None) -> State:
    check_seal(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() or {}
        if header["step"] != str(step):
            raise ValueError(f"it is of step {header['step'][:20]}, in the folder of step {step}")
        if header.get("run", run) != run:  # older ones do not say
            raise ValueError("it is of another run, with other settings or data")
        state = _formed(template, header)
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # By their paths: what else an older optimiser kept shifts the numbers before them.
        stored = {_path(name): value for name, value in arrays.items()}
        values = []
        for name, leaf in _leaves(state):
            value = stored.get(_path(name))
            if value is None:
                raise ValueError(f"it has no {name}")
            if value.shape != leaf.shape or value.dtype != leaf.dtype:
                raise ValueError(f"{name} is {value.dtype}{list(value.shape)}")
            if not np.isfinite(value).all():
                raise ValueError(f"{name} holds numbers that are not finite")
            values.append(jnp.asarray(value))
        if header.get("sha256", _digest(arrays)) != _digest(arrays):  # older ones have none
            raise ValueError("its content is not what was written")
    return _filled(state, values)
