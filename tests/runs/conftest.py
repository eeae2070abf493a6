"""A small data set, and a run of it, that several tests of runs compare with."""

import numpy as np
import pytest

from kaem.runs import train
from support.training import TINY, images


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "blobs.npy"
    np.save(path, images())
    return path


@pytest.fixture(scope="module")
def whole(blobs, tmp_path_factory):
    """A run that nothing interrupted."""
    return train("digits-kan", tmp_path_factory.mktemp("runs") / "whole", data=blobs, set=TINY).run
