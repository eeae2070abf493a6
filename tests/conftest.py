"""Shared fixtures, and the one place that knows where optional data may be."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data():
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data, which is not on this machine")
    return SHARED


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    """No test sees the user's cache or data, or leaves files in the working folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAEM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs():
    """Every compiled program maps memory, and Linux allows a process 65,530 maps: beyond, XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        import gc

        import jax

        jax.clear_caches()
        gc.collect()


# Two workers share the cores: products of NumPy on two threads each would wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Many tests compile the same small models: each is compiled once for each run of the suite, which
# the workers share through a folder that goes with it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="kaem-tests-")
    os.environ["KAEM_TESTS_CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput") and "KAEM_TESTS_CACHE" in os.environ:
        shutil.rmtree(os.environ["KAEM_TESTS_CACHE"], ignore_errors=True)


# As the command line does on two cores: batches of Langevin updates are split over the devices.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# Compiling is most of what the tests do; optimised code is for those who run it more than once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
