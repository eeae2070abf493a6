"""What several verbs ask of their arguments."""

import argparse
from pathlib import Path

from ..errors import UserError


def seed(text: str) -> int:
    """A seed of random numbers."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(
            f"a seed is a whole number from 0 to 2^63 - 1, got {text!r}"
        )
    return value


def checked_folder(path: Path) -> Path:
    """A place for files, or what is in the way."""
    for part in (path, *path.parents):
        if part.exists():
            if not part.is_dir():
                raise UserError(
                    f"files cannot be written into {path}: {part} is a file; give a folder with -o."
                )
            break
    return path
