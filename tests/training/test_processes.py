"""Several processes that share every batch, through JAX's own runtime on this machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kaem

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join([str(TESTS), str(Path(kaem.__file__).parents[1])])


def curves(learner, processes):
    """Return the losses that each of so many processes sees."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "support.processes", learner, address, str(processes)]
    environment = os.environ | {"PYTHONPATH": PATH, "JAX_NUM_CPU_DEVICES": "1"}
    started = [
        subprocess.Popen(
            [*command, str(i)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    found = []
    for process in started:
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
        found.append(json.loads(out.splitlines()[-1]))
    return np.array(found)


@pytest.mark.parametrize(
    "learner",
    [
        "encoder",
        pytest.param("importance", marks=pytest.mark.slow),
        pytest.param("persistent", marks=pytest.mark.slow),
        pytest.param("tempered", marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_what_one_does(learner):
    two, (one,) = curves(learner, 2), curves(learner, 1)
    assert len(one) == 5
    assert one[-1] < one[0]
    np.testing.assert_array_equal(two[0], two[1])
    np.testing.assert_allclose(two[0], one, rtol=1e-5)


def test_a_batch_that_processes_cannot_share_is_refused(monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(
        kaem.UserError, match=r"2 processes cannot share an update of 25 .* multiple of 2"
    ):
        kaem.parallel.training_mesh(25)
