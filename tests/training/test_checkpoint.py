"""Checkpoints: bit-exact, and whole or passed over."""

from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest

from kaem import UserError
from kaem.training import checkpoint
from kaem.training.loop import updates
from support.training import fresh, images, run_to_end, same, tiny


def test_checkpoint_round_trip_is_bit_exact(tmp_path):
    settings, x = tiny(), images()
    final, _ = run_to_end(fresh(settings, x), settings, x)
    for boundary in updates(fresh(settings, x), x, settings.plan()):
        if boundary.state.step == 20:
            checkpoint.write(tmp_path, boundary.state, keep=2)
            break
    restored, notes = checkpoint.read(tmp_path, fresh(settings, x))
    assert restored.step == 20
    assert notes == []
    resumed, _ = run_to_end(restored, settings, x)
    assert same((final.model, final.optimiser), (resumed.model, resumed.optimiser))


def _damaged(path, change):
    data = bytearray((path / "state.safetensors").read_bytes())
    change(data)
    (path / "state.safetensors").write_bytes(bytes(data))


def test_checkpoints_that_are_not_what_was_written_are_passed_over(tmp_path):
    """NaN, a flipped bit, a header that lies: the one before is used, and named."""
    from safetensors.numpy import load_file, save_file

    settings, x = tiny(), images()
    state = fresh(settings, x)

    def start(folder):
        for step in (10, 20):
            checkpoint.write(folder, replace(state, step=step), keep=2)
        return folder / "00000020"

    def flip(data):
        data[-9] ^= 1

    def read(folder):
        restored, notes = checkpoint.read(folder, state)
        assert restored.step == 10
        assert "00000020" in notes[0]
        return notes[0]

    _damaged(start(tmp_path / "flipped"), flip)
    assert "not what was written" in read(tmp_path / "flipped")
    for name, header in {
        "nan": {"step": "20", "cells": str(state.model.prior.cells)},
        "step": {"step": "1", "cells": str(state.model.prior.cells)},
        "cells": {"step": "20", "cells": "1000000000000"},
    }.items():
        file = start(tmp_path / name) / "state.safetensors"
        arrays = load_file(file)
        if name == "nan":
            arrays = {
                n: np.asarray(a * np.nan) if a.dtype.kind == "f" else a for n, a in arrays.items()
            }
        save_file(arrays, file, header)
        read(tmp_path / name)


def test_other_names_among_checkpoints_are_left_alone(tmp_path):
    settings, x = tiny(), images()
    state = fresh(settings, x)
    for name in ("300", "²", "9999999999x", "notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "00000400").mkdir()  # newer, and empty
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, replace(state, step=step), keep=2)
    assert checkpoint.steps(tmp_path) == [20, 30, 400]
    assert all((tmp_path / name).is_dir() for name in ("300", "²", "9999999999x", "notes"))
    restored, notes = checkpoint.read(tmp_path, state)
    assert restored.step == 30
    assert len(notes) == 1


def test_checkpoint_with_refined_tables_restores(tmp_path):
    settings, x = tiny(), images()
    state = fresh(settings, x)
    finer = replace(
        state,
        step=10,
        model=eqx.tree_at(lambda m: m.prior, state.model, state.model.prior.with_cells(32)),
    )
    checkpoint.write(tmp_path, finer, keep=1)
    restored, _ = checkpoint.read(tmp_path, fresh(settings, x))
    assert restored.model.prior.cells == 32
    run_to_end(restored, settings, x)


def test_a_broken_checkpoint_falls_back_to_an_older_one(tmp_path):
    settings, x = tiny(), images()
    state = fresh(settings, x)
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, replace(state, step=step), keep=2)
    assert checkpoint.steps(tmp_path) == [20, 30]
    (tmp_path / "00000030" / "state.safetensors").write_bytes(b"half a file")
    restored, notes = checkpoint.read(tmp_path, state)
    assert restored.step == 20
    assert "00000030" in notes[0]
    (tmp_path / "00000020" / "state.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.read(tmp_path, state)


def test_what_kills_leave_is_put_back_or_removed(tmp_path):
    """A checkpoint that is written again is moved aside first: killed then, it is all there is."""
    settings, x = tiny(), images()
    state = fresh(settings, x)
    checkpoint.write(tmp_path, replace(state, step=10), keep=2)
    (tmp_path / "00000010").rename(tmp_path / ".00000010.old")
    for left in (".00000010.tmp", ".00000020.tmp", ".00000020.old"):
        (tmp_path / left).mkdir()
    (tmp_path / "00000020").mkdir()
    (tmp_path / ".mine.tmp").mkdir()
    checkpoint.tidy(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"00000010", "00000020", ".mine.tmp"}
    restored, notes = checkpoint.read(tmp_path, state)
    assert restored.step == 10
    assert "00000020" in notes[0]
