"""A small run that tests of the command line share, and never write into."""

import pytest

from support.commands import SETTINGS, kaem


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "small"
    kaem("train", "digits-kan", "--steps", 20, "--out", out, "--json", *SETTINGS)
    return out
