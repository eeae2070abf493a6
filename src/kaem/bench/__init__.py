"""Benchmarks: ratios measured side by side in one run.

A benchmark is a module with `run(**options)`, which returns `results` (flat) and `details`,
`render(result)`, which makes a table of them, and, if it has the option `figure`, `draw(details, path)`.
Adding one is one file and one entry of `BENCHMARKS`.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..lazy import submodules


class Benchmark(NamedTuple):
    """A benchmark: its module, imported when it is run, one line about it, and its options."""

    module: str
    summary: str
    options: Mapping[str, dict[str, Any]]  # by name: what `add_argument` takes


def _count(default: int, help: str) -> dict[str, Any]:
    return {"type": int, "default": default, "metavar": "N", "help": f"{help} (default {default})"}


_TIMED = {
    "repeats": _count(7, "turns"),
    "figure": {"metavar": "FILE", "help": "also draw it, as .png or .svg"},
}
BENCHMARKS = {
    "exactness": Benchmark(
        "kaem.bench.exactness",
        "the inverse transform against adaptive quadrature",
        {"run": {"metavar": "RUN", "help": "a trained run (default: train a small one)"}},
    ),
    "importance": Benchmark(
        "kaem.bench.importance",
        "an importance-sampled update against a plain autoencoder's",
        {"repeats": _count(20, "turns")},
    ),
    "training": Benchmark(
        "kaem.bench.training",
        "a Langevin update against a plain formulation and the machine's peak, and over Q",
        _TIMED,
    ),
    "sampling": Benchmark(
        "kaem.bench.sampling",
        "time to draw images: KAEM in three ways, VAE, neural EBM, DDPM",
        _TIMED,
    ),
    "temperatures": Benchmark(
        "kaem.bench.temperatures",
        "a thermodynamic update over the number of power posteriors, and its memory",
        _TIMED | {"steps": _count(10, "of each chain")},
    ),
}


def bench(name: str, *, figure: str | None = None, **options: Any) -> dict[str, Any]:
    """Run a benchmark, and draw it if a file is given; return its flat `results` and full `details`."""
    module = _module(name)
    draw = partial(module.draw, path=Path(figure)) if figure else None
    result = {"benchmark": name, **module.run(**options)}
    if draw:
        draw(result["details"])
    return result


def render(result: dict[str, Any]) -> str:
    """Return what a benchmark found as a table in Markdown."""
    return _module(result["benchmark"]).render(result)


def _module(name: str) -> Any:
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}.")
    return importlib.import_module(BENCHMARKS[name].module)


submodules(__name__)
