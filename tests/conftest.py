"""Shared fixtures, and the one place that knows where optional data may be."""

import os
import shutil
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
# Compiling is most of what the tests do: what was compiled once is kept between workers and runs,
# in a folder that git ignores and that may be removed at any time.
PROGRAMS = Path(__file__).resolve().parents[1] / "build" / "compiled-for-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_configure(config):
    if hasattr(config, "workerinput") or not PROGRAMS.is_dir():
        return
    if sum(path.stat().st_size for path in PROGRAMS.iterdir()) > 2**31:
        shutil.rmtree(PROGRAMS, ignore_errors=True)


# As the command line does on two cores: batches of Langevin updates are split over the devices.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# Optimised code is for those who run it more than once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
