"""Shared fixtures, and the one place that knows where optional data may be."""

import os
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


# Compiling is most of what the tests do; optimised code is for those who run it more than once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
