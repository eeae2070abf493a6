"""kill -9 at any moment, and the same command again: the same bytes in the end."""

import subprocess
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
    """Run a command to its end; return the seconds it took."""
    began = time.monotonic()
    with process(*arguments) as running:
        _, told = running.communicate()
    assert running.returncode == 0, told
    return time.monotonic() - began


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_a_run_ends_with_the_same_bytes(tmp_path, kills):
    whole, killed = (RunFolder(tmp_path / name) for name in ("whole", "killed"))
    seconds = finished(*command(whole.path, "--steps", 120))
    rng = np.random.default_rng(kills)
    ended = []
    for moment in rng.uniform(0.1, 1, kills):
        with process(*command(killed.path, "--steps", 120)) as running:
            try:
                running.communicate(timeout=moment * seconds)
            except subprocess.TimeoutExpired:
                running.kill()
        ended.append(running.returncode)
    assert set(ended) <= {-9, 0}
    assert ended.count(-9) >= kills // 2
    finished(*command(killed.path, "--steps", 120))
    assert killed.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(killed) == numbers(whole)
    sheets = [{p.name: p.read_bytes() for p in r.samples.iterdir()} for r in (whole, killed)]
    assert sheets[0] == sheets[1]
