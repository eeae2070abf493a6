"""Tiny models that the tests of all targets share, in floats and in integers."""

import shutil

import jax
import pytest

from kaem import CNN, KAEM, KAN, MixturePrior, UnivariatePrior
from kaem.export import quantise


@pytest.fixture(scope="session")
def tiny_kan():
    keys = jax.random.split(jax.random.key(0), 2)
    prior = UnivariatePrior(2, 3, key=keys[0], cells=64).cache()
    model = KAEM(prior, KAN(3, (4, 4, 1), key=keys[1], grid_size=5, depth=1))
    return model, quantise(model, samples=64)


@pytest.fixture(scope="session")
def tiny_cnn():
    keys = jax.random.split(jax.random.key(1), 2)
    prior = MixturePrior(2, 4, key=keys[0], cells=64).cache()
    model = KAEM(prior, CNN(4, (8, 12, 3), key=keys[1], widths=(6,), slope=0.2, hidden=(9,)))
    return model, quantise(model, samples=64)


@pytest.fixture(scope="session")
def kan_file(tiny_kan, tmp_path_factory):
    """The model of a run folder."""
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    tiny_kan[0].save(path)
    return path


@pytest.fixture(scope="session")
def needs():
    """Skip a test, and say what to install, unless programs are on this machine."""
    packages = {"vvp": "iverilog"}

    def check(*programs):
        for program in programs:
            if shutil.which(program) is None:
                pytest.skip(
                    f"needs {program}: install the package {packages.get(program, program)}"
                )

    return check
