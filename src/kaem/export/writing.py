"""Writing several files into a folder: all of them or none."""

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from ..errors import UNREADABLE
from ..files import not_written, parse_json, read_text


def write_together(folder: Path, contents: dict[str, bytes], stale: list[str]) -> None:
    """Write all files or none: into a folder inside, on the same file system, from which they are then moved.

    What they replace, and what is stale, is moved away first, and back if anything fails.
    """
    parents = [part for part in (folder, *folder.parents) if not part.exists()]
    moved: list[tuple[Path, Path]] = []
    work = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".export.", dir=folder))
        (work / "new").mkdir()
        (work / "old").mkdir()
        for name, content in contents.items():
            with open(work / "new" / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        before = [name for name in (*contents, *stale) if os.path.lexists(folder / name)]
        moves = [(folder / name, work / "old" / name) for name in before]
        moves += [(work / "new" / name, folder / name) for name in contents]
        for source, place in moves:
            if source.is_dir() and not source.is_symlink():
                raise IsADirectoryError(errno.EISDIR, f"{source} is a folder")
            os.rename(source, place)
            moved.append((source, place))
    except BaseException as error:
        for source, place in reversed(moved):
            os.rename(place, source)
        if work != folder:
            shutil.rmtree(work, ignore_errors=True)
        for part in parents:
            with contextlib.suppress(OSError):
                part.rmdir()
        if isinstance(error, OSError):
            raise not_written(folder, error) from error
        raise
    shutil.rmtree(work, ignore_errors=True)


def stale_files(folder: Path, contents: dict[str, bytes]) -> list[str]:
    """Return what an earlier export left that this one does not write again."""
    try:
        kept = parse_json(read_text(folder / "export.json"))["files"]
        names = [name for name in kept if isinstance(name, str) and Path(name).name == name]
    except (KeyError, TypeError, *UNREADABLE):
        return []
    stale = {*names, "verification.json"} - {*contents, "export.json"}
    return sorted(name for name in stale if (folder / name).is_file())
