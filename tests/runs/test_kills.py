"""kill -9 at any moment, and the same command again: the same bytes in the end."""

import time

import numpy as np
import pytest

from kaem.runs import RunFolder
from support.commands import SETTINGS
from support.runs import numbers, process


def command(out, *more):
    grids = ["--set", "grid.interval=8", "--set", "training.keep_checkpoints=3"]
    return ["train", "digits-kan", "--out", out, *SETTINGS, *grids, "--resume", "auto", *more]


def finished(*arguments):
    """Run a command to its end."""
    with process(*arguments) as running:
        _, told = running.communicate()
    assert running.returncode == 0, told


def killed_after(records, seconds, run, *arguments):
    """Kill a command some seconds after it has logged so many steps; return its code."""

    def logged():
        return run.history_file.read_bytes().count(b"\n") if run.history_file.exists() else 0

    before, enough = logged(), 0
    with process(*command(run.path, *arguments)) as running:
        while running.poll() is None and enough < records:
            time.sleep(0.01)
            now = logged()
            before, enough = min(before, now), now - min(before, now)  # a resumed run cuts some off
        time.sleep(seconds)
        running.kill()
    return running.returncode


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_a_run_ends_with_the_same_bytes(tmp_path, kills):
    whole, killed = (RunFolder(tmp_path / name) for name in ("whole", "killed"))
    steps = ["--steps", 60 * kills]
    finished(*command(whole.path, *steps))
    rng = np.random.default_rng(kills)
    # Counted in records, and not in seconds alone: how far a process comes in one is never the same.
    moments = zip(rng.integers(0, 5, kills), rng.uniform(0, 0.2, kills), strict=True)
    ended = [killed_after(*moment, killed, *steps) for moment in moments]
    assert ended == [-9] * kills
    finished(*command(killed.path, *steps))
    assert killed.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(killed) == numbers(whole)
    sheets = [{p.name: p.read_bytes() for p in r.samples.iterdir()} for r in (whole, killed)]
    assert sheets[0] == sheets[1]
