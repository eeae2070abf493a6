"""The run that tests of evaluation share."""

import pytest

from support.commands import SETTINGS, kaem


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of a few updates, whose `metrics.json` tests may write."""
    out = tmp_path_factory.mktemp("evaluate") / "run"
    kaem("train", "digits-kan", "--out", out, "--steps", 20, *SETTINGS)
    return out
