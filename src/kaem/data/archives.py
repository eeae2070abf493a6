"""Archives that may be meant to do harm: opened and unpacked only as far as they can be believed.

What an archive says of its members is checked before anything is reserved for them, and no member is
ever unpacked further than to the size that it states. Nothing is written to disk.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What zipfile, tarfile and NumPy raise for a damaged file depends on where the damage is. RuntimeError
# is for what is encrypted, needs another unzip, or is nested too deeply.
DAMAGE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack without a limit
_ALWAYS = 2**28  # bytes that anything may be unpacked to
_RATIO = 500  # times its size in the file, that more is unpacked to


def check_ratio(packed: int, unpacked: int, always: int = _ALWAYS) -> None:
    """Raise ValueError if what has so many bytes in a file would fill absurdly many in memory."""
    if unpacked > max(always, _RATIO * packed):
        raise ValueError(
            f"it would be unpacked from {packed / 1e6:.3g} MB to {unpacked / 1e6:,.0f} MB, more than "
            f"{_RATIO} times as much; if that is right, unpack it first, or save it with np.save"
        )


class _Bounded(io.BufferedReader):
    """A file of which only so many bytes are read at once: zipfile asks for its whole directory."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.most:
            raise ValueError(
                f"its directory has {size / 1e6:,.0f} MB, expected at most {self.most / 1e6:,.0f}; if that "
                "is right, unpack it and give the folder"
            )
        return super().read(size)


@contextmanager
def open_zip(path: Path, directory: int = 2**20) -> Iterator[zipfile.ZipFile]:
    """Open a zip file whose list of members has at most `directory` bytes; raises one of DAMAGE.

    A list is read whole, and every member in it takes far more memory than its line.
    """
    with _Bounded(io.FileIO(path)) as file:
        file.most = directory
        with zipfile.ZipFile(file) as archive:
            file.most = 2**31
            yield archive


def check_member(member: zipfile.ZipInfo, most: int | None = None) -> None:
    """Raise ValueError unless a member can be unpacked, to no more than it may."""
    if member.flag_bits & 1:
        raise ValueError(f"{member.filename[:80]} is encrypted")
    if member.compress_type not in _METHODS:
        raise ValueError(
            f"{member.filename[:80]} is packed in a way that is not read; expected deflate, or none"
        )
    if most is not None and member.file_size > most:
        raise ValueError(
            f"unpacked it would take {member.file_size / 1e6:,.0f} MB, expected at most {most / 1e6:,.0f}"
        )
    check_ratio(member.compress_size, member.file_size)


def unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int | None = None) -> bytes:
    """Return the content of a member, of as many bytes as it says, and at most `most`."""
    check_member(member, most)
    with archive.open(member) as file:
        # Not `archive.read`, which unpacks without a limit and cuts then.
        parts = iter(lambda: file.read(2**20), b"")
        content = b"".join(parts)
    if len(content) != member.file_size:
        raise ValueError(f"{member.filename[:80]} is cut off")
    return content
