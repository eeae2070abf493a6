"""What several verbs ask of their arguments, and say in their help."""

import argparse
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError

FLAG: dict[str, Any] = {"action": "store_true"}
NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
OUTPUT = ("-o", "--output")
RUN: dict[str, Any] = {"metavar": "RUN", "help": "a run folder"}
MODEL: dict[str, Any] = {"metavar": "RUN", "help": "a run folder or a .safetensors model"}


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def seed(text: str) -> int:
    """A seed of random numbers."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        expected = "a seed is a whole number from 0 to 2^63 - 1"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return value


SEED: dict[str, Any] = {"type": seed, "default": 0, "metavar": "N"}


def checked_folder(path: Path) -> Path:
    """A place for files, or what is in the way."""
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir():
        raise UserError(
            f"files cannot be written into {path}: {nearest} is a file; give a folder with -o."
        )
    return path


def wrote(options: argparse.Namespace, files: Sequence[Path]) -> dict[str, Any]:
    """Return what a verb that writes files returns, and name them unless JSON will."""
    if not options.json:
        for path in files:
            print(f"wrote {path}")
    return {"files": [str(path) for path in files]}


def list_in_help(parser: Any, title: str, summaries: Callable[[], Mapping[str, str]]) -> None:
    """Let help end with names and their summaries, which are asked for when help is, and not before."""

    def listed() -> str:
        entries = summaries()
        width = max(map(len, entries), default=0) + 2
        wrapper = textwrap.TextWrapper(96, "  ", " " * (width + 2), break_on_hyphens=False)
        lines = (wrapper.fill(f"{name:<{width}}{text}") for name, text in entries.items())
        return "\n".join([f"{title}:", *lines])

    parser.more.append(listed)
