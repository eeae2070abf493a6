"""One run for all tests of what is said and drawn of runs."""

import pytest

from kaem.cli import main

SETTINGS = {
    "data.limit": 500,
    "data.size": 8,
    "learner.samples": 64,
    "training.batch_size": 32,
    "training.log_every": 5,
    "training.checkpoint_every": 10,
    "training.sample_every": 5,
}


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """The folder of the quickstart's model after a few updates on small digits, with its report."""
    out = tmp_path_factory.mktemp("runs") / "quick"
    sets = [a for name, value in SETTINGS.items() for a in ("--set", f"{name}={value}")]
    assert main(["train", "digits-kan", "--steps", "20", "--out", str(out), *sets]) == 0
    return out
