"""Readers of array files: idx, NumPy and CIFAR-10's records. Nothing is ever unpickled."""

import gzip
import math
import struct
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np

from ..errors import UserError, brief
from .archives import DAMAGE, check_member, check_ratio, open_zip
from .rows import Layout

Split = Literal["train", "test"]

SPLIT_KEYS = {"train": ("x_train", "train_x"), "test": ("x_test", "test_x")}
ARRAY_KEYS = ("x", "images", "data", "arr_0")
CIFAR_FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane
CIFAR_RECORDS = 10_000  # in each file
_CIFAR_BYTES, _CIFAR_MEMBERS = 2**28, 100  # of the archive, unpacked; it has 184 MB and 8
_MAX_BYTES = 16 * 10**9  # that an array of a .npz file is unpacked to
_MAX_RANK = 32
_MAGIC = np.lib.format.MAGIC_PREFIX


def read_idx(path: Path) -> np.ndarray:
    """Read an MNIST-format file (idx1 or idx3, gzipped or not)."""
    size = path.stat().st_size
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            begins = file.read(4)
            rank = begins[3] if len(begins) == 4 else 0
            axes = file.read(4 * rank)
            if begins[:3] != b"\0\0\x08" or not 1 <= rank <= _MAX_RANK or len(axes) < 4 * rank:
                raise UserError(
                    f"{path} is not an idx file of bytes: it starts with {begins.hex()!r}."
                )
            shape = struct.unpack(f">{rank}I", axes)
            check_ratio(size, math.prod(shape))
            body = file.read(math.prod(shape) + 1)
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(
            f"{path} could not be decompressed ({error}); it is truncated or damaged. "
            "Delete it and run `kaem data fetch` again."
        ) from error
    if len(body) != math.prod(shape) or not body:
        got = "more" if len(body) > math.prod(shape) else len(body)
        raise UserError(
            f"{path} should hold {math.prod(shape)} bytes for shape {shape}, got {got}; "
            "it is truncated or damaged."
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say of which file it is that it is no readable NumPy file."""
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(
            f"{path} is not a readable NumPy file: {str(error).rstrip('.')}. It may be truncated or "
            "another format; save plain numeric arrays with np.save or np.savez."
        ) from error


def large_npy(path: Path, memory: int) -> Layout | None:
    """Return where the numbers of a `.npy` file are, if in memory they would fill more than `memory` bytes."""
    with _explained(path), open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(0)
        with _parsed():
            shape, by_columns, dtype = _checked_header(file, path.stat().st_size)
        number = 1 if dtype == np.uint8 else 4  # others become float32
        if not shape or dtype.kind not in "biuf" or math.prod(shape) * number <= memory:
            return None
        return Layout(str(path), shape, dtype.str, file.tell(), by_columns and len(shape) > 1)


def read_array(path: Path, key: str | None = None, split: Split = "train") -> np.ndarray:
    """Read a `.npy` file, or one array of a `.npz` file."""
    with _explained(path):
        with open(path, "rb") as file:
            begins = file.read(len(_MAGIC))
            file.seek(0)
            if begins == _MAGIC:
                return read_npy(file, path.stat().st_size)
        if not begins.startswith(b"PK"):
            pickled = begins[:1] == b"\x80"
            raise ValueError("it holds Python objects" if pickled else "it does not begin as one")
        with open_zip(path) as archive:
            arrays = members(archive)
            return read_member(archive, arrays[_choose_key(path, list(arrays), key, split)])


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return what a `.npz` file holds, by the names that NumPy gives it."""
    return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return one array of a `.npz` file; raises ValueError, or another of `archives.DAMAGE`."""
    check_member(member, _MAX_BYTES)
    with archive.open(member) as file:
        array = read_npy(file, member.file_size)
        if file.read(1):  # and here, at its end, its checksum is compared
            raise ValueError(f"{member.filename[:80]} is longer than its array")
        return array


def read_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Return the array in a `.npy` file of `size` bytes, or raise ValueError."""
    with _parsed():
        _checked_header(file, size)
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


@contextmanager
def _parsed() -> Iterator[None]:
    """Raise ValueError for whatever NumPy raises of a damaged array."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            yield
    except (*DAMAGE, SyntaxError, tokenize.TokenError) as error:
        reason = str(error)
        if "Object arrays" in reason:
            reason = "it holds Python objects"
        elif "magic string" in reason:
            reason = "it is no array"
        elif not isinstance(error, (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)):
            reason = "its header does not parse"
        raise ValueError(brief(reason, 200)[1:-1]) from error


def _checked_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of an array, whether it lies by columns, and its type; raise if it claims more than its file has.

    NumPy reserves what the header claims before it reads.
    """
    version = np.lib.format.read_magic(file)
    # Version 3 differs from 2 in the encoding of names.
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    try:
        shape, by_columns, dtype = read(file)
    except MemoryError as error:  # of Python's parser; the array itself may not fit, either
        raise ValueError("its header does not parse") from error
    if len(shape) > _MAX_RANK or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"its header claims the shape {brief(shape)}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.fields is not None or dtype.subdtype is not None or not dtype.itemsize:
        raise ValueError(f"it holds {brief(str(dtype))}, expected an array of plain numbers")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size - file.tell():
        raise ValueError(
            f"its header claims {dtype} numbers of shape {brief(shape)}, {claimed / 1e9:.3g} GB, but the "
            f"file holds {size / 1e9:.3g} GB"
        )
    return shape, by_columns, dtype


def _choose_key(path: Path, keys: list[str], key: str | None, split: Split) -> str:
    more = f" and {len(keys) - 20} more" if len(keys) > 20 else ""
    listed = ", ".join(name[:80] for name in keys[:20]) + more or "nothing"
    if key is not None:
        if key not in keys:
            raise UserError(f"{path} has no array {key!r}; it holds {listed}.")
        return key
    for candidate in SPLIT_KEYS[split]:
        if candidate in keys:
            return candidate
    if split == "test" and any(k in keys for k in SPLIT_KEYS["train"]):
        raise UserError(
            f"{path} has training data but no {' or '.join(SPLIT_KEYS['test'])}; it holds "
            f"{listed}. Add one, or say which to use with --set data.key=NAME."
        )
    for candidate in (*ARRAY_KEYS, *(keys if len(keys) == 1 else [])):
        if candidate in keys:
            return candidate
    raise UserError(f"{path} holds {listed}; say which to use with --set data.key=NAME.")


class _Counted:
    """What is unpacked of an archive, up to as much as is read at all."""

    def __init__(self, read: Callable[[int], bytes], most: int) -> None:
        self._read, self._left = read, most

    def read(self, size: int) -> bytes:
        found = self._read(min(size, self._left + 1))
        self._left -= len(found)
        if self._left < 0:
            raise ValueError("it unpacks to more than CIFAR-10 has")
        return found


def read_cifar(path: Path, split: Split = "train", limit: int | None = None) -> np.ndarray:
    """Read CIFAR-10's binary archive in one pass without unpacking it."""
    records: dict[str, np.ndarray] = {}
    try:
        with open(path, "rb") as begin:
            zipped = begin.read(2) == b"\x1f\x8b"
        with (gzip.open if zipped else open)(path, "rb") as file:
            counted: Any = _Counted(file.read, _CIFAR_BYTES)
            with tarfile.open(fileobj=counted, mode="r|") as archive:
                for number, member in enumerate(archive):
                    if number >= _CIFAR_MEMBERS:
                        raise ValueError(f"it has more than {_CIFAR_MEMBERS} members")
                    name = PurePosixPath(member.name).name
                    if name in CIFAR_FILES[split] and (content := archive.extractfile(member)):
                        records[name] = _records(path, name, member.size, content, limit)
    except UserError:
        raise
    except (*DAMAGE, tarfile.TarError) as error:
        raise UserError(
            f"{path} could not be unpacked ({error}); it is truncated, damaged or no tar file. "
            "Delete it and run `kaem data fetch cifar10`."
        ) from error
    missing = [name for name in CIFAR_FILES[split] if name not in records]
    if missing:
        raise UserError(
            f"{path} lacks {', '.join(missing)}; expected the binary version of CIFAR-10, "
            "cifar-10-binary.tar.gz. Run `kaem data fetch cifar10`."
        )
    planes = np.concatenate([records[name] for name in CIFAR_FILES[split]])[:limit, 1:]
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _records(path: Path, name: str, size: int, file: IO[bytes], limit: int | None) -> np.ndarray:
    """Return the first `limit` records of one file of CIFAR-10, labels and all."""
    count, rest = divmod(size, CIFAR_RECORD)
    if rest or count > CIFAR_RECORDS:
        raise UserError(
            f"{name} of {path} has {size} bytes, expected up to {CIFAR_RECORDS} records of "
            f"{CIFAR_RECORD}; it is another dataset, or damaged. Run `kaem data fetch cifar10`."
        )
    content = file.read(min(count, limit or count) * CIFAR_RECORD)
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
