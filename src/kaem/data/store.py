"""Decoded examples, kept in the user's cache folder, so that they are decoded once.

A data set is one `.npy` file, named by a digest of what it was made of, and a `.json` beside it, which
says what was noticed and whose time is that of the last use. Both are there, or it is as if nothing were.
The folder is bounded: what was not used for longest goes first. `KAEM_DATA_CACHE` is the bound in GB.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache import cache_folder
from ..errors import UNREADABLE, UserError
from ..files import not_written, read_json, write_atomically
from .rows import Layout, Rows, Survey
from .workers import decode_into

if TYPE_CHECKING:
    from .decoding import Source

_VERSION = 1  # of what is in the folder
_GIGABYTES = 64.0  # at most, and a tenth of the disk stays free


def folder() -> Path:
    """Return where decoded examples are kept."""
    return cache_folder() / "decoded"


def stored(source: "Source", say: Callable[[str], None]) -> Rows:
    """Return the examples of a source on disk; they are decoded if they are not there yet."""
    from filelock import FileLock

    key = _key([*source.made_of(), source.shape, str(source.dtype)])
    found = _opened(key, source)
    if found is None:
        place = _place(key)
        with _locked(FileLock(place.with_suffix(".lock"), fallback_to_soft=False), place, say):
            found = _opened(key, source)  # by whoever had the lock before
            if found is None:
                _decode(source, place, say)
                found = _opened(key, source)
        if found is None:
            raise UserError(
                f"{place} was removed while it was read. See who did that, and try again."
            )
    rows, notes = found
    for note in notes:
        say(note)
    return rows


def surveyed(rows: Rows) -> Rows:
    """Return examples of a file of the user's, with what is known of them if they were read before."""
    place = _place(_key(["survey", written(Path(rows.layout.path)), asdict(rows.layout)]))
    known = _note(place)
    if known is not None:
        rows.survey = known[0]
        return rows
    with contextlib.suppress(UserError):  # where nothing can be kept, it is read again next time
        write_atomically(_beside(place), _written(rows.survey, []))
    return rows


def written(path: Path) -> tuple[str, int, int]:
    """Return which file this is, and when it was written last."""
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns


def _key(made_of: Iterable[Any]) -> str:
    found = hashlib.sha256(json.dumps(["kaem", _VERSION]).encode())
    for part in made_of:
        found.update(json.dumps(part).encode() + b"\n")
    return found.hexdigest()[:32]


def _place(key: str) -> Path:
    return folder() / f"{key}.npy"


def _beside(place: Path) -> Path:
    return place.with_suffix(".json")


def _written(survey: Survey, notes: list[str]) -> bytes:
    return json.dumps({"survey": asdict(survey), "notes": notes}).encode()


def _note(place: Path) -> tuple[Survey, list[str]] | None:
    """Return what is written beside a data set, which is used now."""
    try:
        found = read_json(_beside(place))
        os.utime(_beside(place))
        return Survey(**found["survey"]), [str(note) for note in found["notes"]]
    except (*UNREADABLE, KeyError, TypeError):
        return None


def _opened(key: str, source: "Source") -> tuple[Rows, list[str]] | None:
    """Return a data set of the folder, and what is to be said of it, if it is there and whole."""
    place = _place(key)
    known = _note(place)
    if known is None:
        return None
    try:
        if not place.is_file():
            return None
        with open(place, "rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
            size = os.fstat(file.fileno()).st_size
        if (shape, dtype) != (tuple(source.shape), source.dtype):
            return None
        if size != offset + math.prod(shape) * dtype.itemsize:
            return None
        return Rows(Layout(str(place), shape, dtype.str, offset), known[0]), known[1]
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _locked(lock: Any, place: Path, say: Callable[[str], None]) -> Any:
    """Be the only process that decodes these data; wait for another one that does."""
    from filelock import Timeout

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say("another process decodes the same data: waiting for it")
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        why = error if isinstance(error, OSError) else OSError(str(error))
        raise _unwritable(place, why) from error
    try:
        yield
    finally:
        lock.release()


def _decode(source: "Source", place: Path, say: Callable[[str], None]) -> None:
    """Decode a source into `place`, which is there in the end, or is not."""
    size, temporary = math.prod(source.shape) * source.dtype.itemsize, place.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed
    _make_room(place.parent, size, source.what)
    say(f"decoding {source.what} into {place} once: {size / 1e6:,.0f} MB")
    began = last = time.monotonic()

    def progress(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            say(f"decoded {done:,} of {source.shape[0]:,}")

    try:
        try:
            with open(temporary, "wb") as file:
                header = {"descr": source.dtype.str, "fortran_order": False, "shape": source.shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                offset = file.tell()
                if hasattr(os, "posix_fallocate"):  # a full disk is found now
                    os.posix_fallocate(file.fileno(), 0, offset + size)
                else:
                    file.truncate(offset + size)
            decode_into(source, temporary, offset, progress)
            with open(temporary, "rb+") as whole:
                os.fsync(whole.fileno())
            layout = Layout(str(temporary), source.shape, source.dtype.str, offset)
            survey = Rows(layout).survey
            write_atomically(_beside(place), _written(survey, source.notes()))
            os.replace(temporary, place)
        finally:
            for left in (temporary, Path(f"{temporary}.alone")):
                with contextlib.suppress(OSError):
                    left.unlink()
    except OSError as error:
        raise _unwritable(place, error) from error
    say(f"decoded {source.shape[0]:,} in {time.monotonic() - began:.0f} s")


def _unwritable(place: Path, error: OSError) -> UserError:
    return UserError(
        f"{not_written(place, error)} Decoded data are kept in {place.parent}; XDG_CACHE_HOME chooses "
        "another place for all caches, and `--set data.memory=none` keeps the data in memory."
    )


def _make_room(where: Path, needed: int, what: str) -> None:
    """Remove what was not used for longest until `needed` bytes fit; raise if they never will."""
    from filelock import FileLock, Timeout

    for left in where.glob(
        "*.tmp"
    ):  # by processes that were killed: who still decodes has the lock
        lock = FileLock(left.with_suffix(".lock"), timeout=0, fallback_to_soft=False)
        with contextlib.suppress(OSError, Timeout), lock:
            left.unlink(missing_ok=True)
    kept = {}
    for path in where.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            kept[path] = path.stat().st_size
    total, disk = sum(kept.values()), shutil.disk_usage(where)
    chosen = os.environ.get("KAEM_DATA_CACHE")
    try:
        bound = float(chosen or _GIGABYTES) * 1e9
    except ValueError as error:
        raise UserError(f"KAEM_DATA_CACHE must be a number of GB, got {chosen!r}.") from error
    spare = 0 if chosen else disk.total // 10
    bound = min(bound, total + disk.free - spare)
    if needed > bound:
        raise UserError(
            f"{what} need {needed / 1e9:.3g} GB when they are decoded, but {where} may have "
            f"{max(bound, 0) / 1e9:.3g} GB. Make them smaller with `--set data.size=N`, take fewer with "
            "`--set data.limit=N`, allow more by the variable KAEM_DATA_CACHE (in GB), or choose a larger "
            "disk by XDG_CACHE_HOME."
        )

    def used(place: Path) -> float:
        with contextlib.suppress(OSError):
            return _beside(place).stat().st_mtime
        return 0.0

    for place in sorted((p for p in kept if p.suffix == ".npy"), key=used):
        if total + needed <= bound:
            break
        with contextlib.suppress(OSError):  # in use, on Windows; elsewhere its reader keeps it
            place.unlink()
            total -= kept[place]
            _beside(place).unlink(missing_ok=True)
