"""Files: written whole or not at all, read or explained, and known by their digests."""

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UNREADABLE, UserError


class NotWritten(UserError):
    """A file or folder that is as it was before, because it could not be written."""


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write beside, flush to disk, rename: at any moment the file is the old one or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # not to write through a link that somebody put there
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # a second Ctrl-C among them
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise not_written(path, error) from error
        raise


def not_written(path: str | os.PathLike[str], error: OSError) -> NotWritten:
    """Return what to say of a file or folder that is as it was before, because it could not be written."""
    advice = "see to that or choose another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some space or choose another place"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "choose another place or change its permissions"
    return NotWritten(
        f"could not write {path}: {error.strerror or error}. Nothing that was there before is "
        f"changed; {advice}, and try again."
    )


def _whole(text: str) -> int:
    if not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError(f"the number {text[:20]}... has {len(text)} digits")
    return value


def parse_json(text: str) -> Any:
    """Return what a JSON text holds, if its whole numbers are such as can be computed with."""
    return json.loads(text, parse_int=_whole)


def read_text(path: Path, most: int = 2**24, errors: str = "strict") -> str:
    """Return the text of a file of at most `most` bytes; raises one of UNREADABLE.

    Of settings and records, a few bytes of text may become a hundred times as many in memory.
    """
    if not stat.S_ISREG((found := path.stat()).st_mode):  # reading a pipe may never end
        raise ValueError("it is not a file")
    if found.st_size > most:
        raise ValueError(
            f"it has {found.st_size / 1e6:,.0f} MB, expected at most {most / 1e6:,.0f}"
        )
    return path.read_text("utf8", errors)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run folder."""
    try:
        value = parse_json(read_text(path))
    except UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read ({error}). Give a folder made by `kaem train`, or restore the file."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} should hold a JSON object, got {type(value).__name__}.")
    return value


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def blocks(x: Any, most: int = 2**24) -> Iterator[np.ndarray]:
    """Return examples, in memory or on disk, some at a time: about `most` bytes, in order."""
    step = max(1, most * len(x) // max(1, x.nbytes))
    return (x[start : start + step] for start in range(0, len(x), step))


def digest(x: Any, *, header: str = "") -> str:
    """Return the SHA-256 of an array's content, or of examples on disk, after a `header` of the caller's."""
    found = hashlib.sha256(header.encode())
    for block in blocks(x) if x.ndim else [x]:
        found.update(np.ascontiguousarray(block).data)
    return found.hexdigest()


_BLANK = "0" * 64  # in place of a digest, while it is computed


def sealed(data: bytes) -> bytes:
    """Return a safetensors file with the keys of its header in order, and a digest of all other bytes.

    Equal content is equal bytes. That there is a digest is said twice: whichever byte is altered, it
    is missed or does not fit.
    """
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= {"digest": _BLANK, "digested": "sha256"}
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    blank = struct.pack("<Q", len(text)) + text + data[8 + size :]
    return _with_digest(blank, _BLANK, hashlib.sha256(blank).hexdigest())


_MAX_HEADER = 2**23  # bytes; that of a model with a thousand arrays has a tenth


def check_seal(path: str | os.PathLike[str]) -> None:
    """Raise if a safetensors file is not what `sealed` made of it; those of older versions have no digest."""
    if not Path(path).is_file():  # reading a pipe may never end
        raise ValueError("it is not a file")
    with open(path, "rb") as file:
        length = file.read(8)
        if (size := int.from_bytes(length, "little")) > _MAX_HEADER:
            raise ValueError(
                f"its header has {size / 1e6:,.0f} MB, expected at most {_MAX_HEADER / 1e6:,.0f}"
            )
        text = file.read(min(int.from_bytes(length, "little"), os.fstat(file.fileno()).st_size))
        header = json.loads(text)
        notes = header.get("__metadata__", {}) if isinstance(header, dict) else {}
        if not isinstance(notes, dict) or not {"digest", "digested"} & notes.keys():
            return
        said = str(notes.get("digest"))
        found = hashlib.sha256(length + _with_digest(text, said, _BLANK))
        while piece := file.read(2**20):
            found.update(piece)
    if found.hexdigest() != said:
        raise ValueError("its content is not what was written")


def _with_digest(data: bytes, old: str, new: str) -> bytes:
    return data.replace(f'"digest": "{old}"'.encode(), f'"digest": "{new}"'.encode(), 1)
