"""Tests that are about several devices, in a process that has two: JAX takes their number when it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "which", ["devices and not slow", pytest.param("devices and slow", marks=pytest.mark.slow)]
)
def test_batches_over_two_devices(which):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", which, str(Path(__file__).parent)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
