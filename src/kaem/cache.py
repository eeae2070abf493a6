"""The user's cache folder, and compiled programs in it, kept between runs.

XLA compiles a program for seconds which then runs for milliseconds. The command line keeps what it
compiled in the user's cache folder, so that the second run of a verb starts at once. The folder is
bounded; the programs least recently used go first. `KAEM_COMPILATION_CACHE=off` keeps nothing, and
JAX's own JAX_COMPILATION_CACHE_DIR chooses another folder.
"""

import hashlib
import os
import platform
from pathlib import Path

_BYTES = 512 * 2**20
_OFF = ("off", "0", "no", "false")


def cache_folder() -> Path:
    """Return where fetched data, features, weights and compiled programs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kaem"


def keep_compiled_programs() -> None:
    """Tell JAX, which must not have been imported yet, where to keep them."""
    if os.environ.get("KAEM_COMPILATION_CACHE", "").lower() in _OFF:
        return
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = cache_folder() / "compiled" / machine()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a home that cannot be written is no reason to stop
            return
        if not os.access(folder, os.W_OK):
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_BYTES))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def machine() -> str:
    """A name for this kind of processor: a home that several machines share has a folder for each."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
