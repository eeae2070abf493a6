"""Readers of array files: idx, NumPy and CIFAR-10's records. Nothing is ever unpickled."""

import gzip
import math
import struct
import tarfile
import tokenize
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import numpy as np

from ..errors import UserError

Split = Literal["train", "test"]

SPLIT_KEYS = {"train": ("x_train", "train_x"), "test": ("x_test", "test_x")}
ARRAY_KEYS = ("x", "images", "data", "arr_0")
CIFAR_FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
# What NumPy raises for a damaged file depends on where the damage is.
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane
CIFAR_RECORDS = 10_000  # in each file
_MAX_GIGABYTES = 16  # that an array of a .npz file is unpacked to


def read_idx(path: Path) -> np.ndarray:
    """Read an MNIST-format file (idx1 or idx3, gzipped or not)."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} could not be decompressed ({error}); it is truncated or damaged. "
            "Delete it and run `kaem data fetch` again."
        ) from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise UserError(f"{path} is not an idx file of bytes: it starts with {data[:4].hex()!r}.")
    rank = data[3]
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    body = data[4 + 4 * rank :]
    if len(body) != math.prod(shape):
        raise UserError(
            f"{path} should hold {math.prod(shape)} bytes for shape {shape}, got {len(body)}; "
            "it is truncated or damaged."
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_array(path: Path, key: str | None = None, split: Split = "train") -> np.ndarray:
    """Read a `.npy` file, or one array of a `.npz` file."""
    try:
        with open(path, "rb") as file:
            _check_header(file, path.stat().st_size)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            name = _choose_key(path, loaded.files, key, split)
            stored = loaded.zip.namelist()
            member = loaded.zip.getinfo(name if name in stored else f"{name}.npy")
            if member.file_size > _MAX_GIGABYTES * 1e9:
                raise ValueError(
                    f"unpacked, {name} has {member.file_size / 1e9:.3g} GB, expected at most "
                    f"{_MAX_GIGABYTES}"
                )
            with loaded.zip.open(member) as packed:
                _check_header(packed, member.file_size)
            array = loaded[name]
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is no array")
            return array
    except _DAMAGE as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).rstrip(".")
        if "Object arrays" in reason or "Cannot load file" in reason:
            reason = "it holds Python objects"
        elif "allow_pickle" in reason:
            reason = "it does not begin as one"
        raise UserError(
            f"{path} is not a readable NumPy file: {reason}. It may be truncated or another format; "
            "save plain numeric arrays with np.save or np.savez."
        ) from error


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise if an array claims more than the `size` bytes of its file; other files are let through.

    NumPy reserves what the header claims before it reads.
    """
    begins = file.read(len(np.lib.format.MAGIC_PREFIX))
    file.seek(0)
    if begins != np.lib.format.MAGIC_PREFIX:
        return
    version = np.lib.format.read_magic(file)
    # Version 3 differs from 2 in the encoding of names.
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"its header claims the shape {shape}")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size and not dtype.hasobject:
        raise ValueError(
            f"its header claims {dtype} numbers of shape {shape}, {claimed / 1e9:.3g} GB, but the file "
            f"holds {size / 1e9:.3g} GB"
        )
    file.seek(0)


def _choose_key(path: Path, keys: list[str], key: str | None, split: Split) -> str:
    more = f" and {len(keys) - 20} more" if len(keys) > 20 else ""
    listed = ", ".join(keys[:20]) + more or "nothing"
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


def read_cifar(path: Path, split: Split = "train", limit: int | None = None) -> np.ndarray:
    """Read CIFAR-10's binary archive in one pass without unpacking it."""
    records: dict[str, np.ndarray] = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in CIFAR_FILES[split] and (file := archive.extractfile(member)):
                    count, rest = divmod(member.size, CIFAR_RECORD)
                    if rest or count > CIFAR_RECORDS:
                        raise UserError(
                            f"{name} of {path} has {member.size} bytes, expected up to "
                            f"{CIFAR_RECORDS} records of {CIFAR_RECORD}; it is another dataset, or "
                            "damaged. Run `kaem data fetch cifar10`."
                        )
                    content = file.read(min(count, limit or count) * CIFAR_RECORD)
                    records[name] = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
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
