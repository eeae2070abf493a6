"""Shared fixtures, and the one place that knows where optional data may be."""

import gc
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kaem.cache import machine

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
# Compiling is most of what the tests do: what was compiled once is kept between workers, runs and
# clones, in a folder that may be removed at any time.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kaem-tests"
PROGRAMS = (
    CACHE
    / f"jax-{version('jax')}-{version('jaxlib')}-{sys.version_info[0]}.{sys.version_info[1]}-{machine()}"
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Two workers share the cores: products of NumPy on two threads each would wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Most tests run on one device, which compiles faster; `test_devices.py` runs those that are about two.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")
# Optimised code is for those who run it more than once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and "XLA_FLAGS" not in os.environ:
    # Kernels by the older of XLA's two code generators, which takes half as long to compile them.
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"
# What JAX keeps of traced functions is looked through at every full collection: a tenth of the time.
gc.set_threshold(50_000, 20, 100)


def pytest_configure(config):
    if hasattr(config, "workerinput") or not CACHE.is_dir():
        return
    if sum(path.stat().st_size for path in CACHE.rglob("*") if path.is_file()) > 2**31:
        shutil.rmtree(CACHE, ignore_errors=True)


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


def _make_room():
    """Every compiled program maps memory, and Linux allows a process 65,530 maps: beyond, XLA crashes."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _room_after_modules():
    yield
    _make_room()


@pytest.fixture(autouse=True)
def _room_after_slow_tests(request):
    """Optimised programs are larger: a benchmark may need half of all maps."""
    yield
    if request.node.get_closest_marker("slow"):
        _make_room()
