"""`kaem info [RUN]`: versions and devices, or what a run is and how far it got."""

import argparse
import platform
from pathlib import Path
from typing import Any

from ..errors import printable


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder")


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = _run(options.run) if options.run else _machine()
    if not options.json:
        for name, value in result.items():
            print(f"{name.replace('_', ' '):<14}{printable(_text(value))}")
    return result


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _machine() -> dict[str, Any]:
    import os
    from importlib.metadata import PackageNotFoundError, version

    import jax

    from ..data import search_folders
    from ..settings import PRESETS

    versions = {}
    for package in ("kaem", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "matplotlib"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "python": platform.python_version(),
        "devices": [str(d) for d in jax.devices()],
        "cores": os.cpu_count(),
        "presets": list(PRESETS),
        "data_folders": [str(f) for f in search_folders()],
    }


def _model(path: Path) -> str:
    return f"{path}, {path.stat().st_size / 1e6:.1f} MB" if path.is_file() else "none yet"


def _run(path: str) -> dict[str, Any]:
    from ..runs.folder import RunFolder
    from ..training import checkpoint

    run = RunFolder.open(path)
    record, history = run.record(), run.history()
    config = run.settings()
    last = history[-1] if history else {}
    return {
        "run": str(run.path),
        "what": record.get("what"),
        "created": record.get("created"),
        "data": f"{config.data.name} {record.get('data', {}).get('shape')}",
        "progress": f"step {last.get('step', 0)} of {config.training.steps}",
        "checkpoints": checkpoint.steps(run.checkpoints),
        "model": _model(run.model_file),
        "versions": record.get("versions", {}),
        "metrics": last,
    }
