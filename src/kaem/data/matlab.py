"""MATLAB 5 files, as far as images are kept in them: `uint8` arrays, compressed or not.

A file is a header of 128 bytes and elements, each a tag (type, number of bytes) and its data. An
array is an element of elements: flags, dimensions, name, numbers. SciPy's reader is not used: it
trusts these numbers, and a flipped bit can crash it.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import UserError
from .archives import DAMAGE, check_ratio

_INT8, _UINT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 2, 5, 6, 14, 15
_CLASSES = [
    "unknown",
    "cell",
    "struct",
    "object",
    "char",
    "sparse",
    "double",
    "single",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
]
_HEAD = 256  # bytes that its flags, its dimensions or its name may have
_MOST = 1000  # arrays in a file


def read_mat(path: Path, key: str | None = None, limit: int | None = None) -> np.ndarray:
    """Read images in a MATLAB 5 file, SVHN's way: uint8 [height, width, channels, N], named X."""
    key, names = key or "X", []
    try:
        data = path.read_bytes()
        for name, form, shape, body in _arrays(data):
            names.append(name)
            if len(names) > _MOST:
                raise ValueError(f"it holds more than {_MOST} arrays")
            if name != key:
                continue
            if form != "uint8" or len(shape) != 4 or shape[2] not in (1, 3):
                raise UserError(
                    f"{key} of {path} has shape {shape} and type {form}, expected uint8 images "
                    "[height, width, channels, N]; save other arrays as .npy."
                )
            x = np.frombuffer(_numbers(body, shape, len(data)), np.uint8).reshape(shape, order="F")
            return np.ascontiguousarray(x[..., :limit].transpose(3, 0, 1, 2))
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(
            f"{path} is not a readable MATLAB 5 file ({error}). Delete it and fetch it again; "
            "a file of your own must be saved with `save -v6` or `-v7`, or as .npy."
        ) from error
    raise UserError(
        f"{path} has no variable {key!r}; it holds {', '.join(names[:20]) or 'nothing'}. Say which to "
        "use with --set data.key=NAME."
    )


class _Stream:
    """Bytes that are read from the front, unpacked only as far as they are asked for."""

    def __init__(self, data: memoryview, packed: bool, order: str) -> None:
        self._rest, self.order = data, order
        self._unpack = zlib.decompressobj() if packed else None

    def read(self, number: int) -> bytes | memoryview:
        """Return so many bytes, or raise ValueError."""
        if self._unpack is None:
            found, self._rest = self._rest[:number], self._rest[number:]
            if len(found) < number:
                raise ValueError("it ends too early")
            return found
        parts = []
        while number:
            part = self._unpack.decompress(self._rest, number)
            self._rest = memoryview(self._unpack.unconsumed_tail)
            if not part:
                raise ValueError("it ends too early")
            parts.append(part)
            number -= len(part)
        return b"".join(parts)

    def check_end(self) -> None:
        """Raise unless what was packed ends here, with the checksum that it should have."""
        if self._unpack is None:
            return
        padding = 0
        while not self._unpack.eof:
            found = len(self._unpack.decompress(self._rest, 8))
            self._rest = memoryview(self._unpack.unconsumed_tail)
            padding += found
            if padding > 8 or (not found and not self._unpack.eof):
                raise ValueError("its packed data does not end")

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(self.order + form, self.read(struct.calcsize(form)))

    def tag(self) -> tuple[int, int, bytes | memoryview]:
        """Return the type and size of the next element, and its data if it is a small one."""
        kind, size = self.numbers("II")
        small = kind >> 16
        if not small:
            return kind, size, b""
        if small > 4:
            raise ValueError(f"an element of {small} bytes where at most 4 fit")
        return kind & 0xFFFF, small, struct.pack(self.order + "I", size)[:small]

    def element(self, expected: int) -> bytes:
        """Return the data of the next element, which must be of one type and no larger than a head."""
        kind, size, data = self.tag()
        if kind != expected or size > _HEAD:
            raise ValueError(f"an element of type {kind} and {size} bytes, not of type {expected}")
        return bytes(data) if len(data) else bytes(self.read(size + -size % 8)[:size])


def _arrays(data: bytes) -> Iterator[tuple[str, str, tuple[int, ...], _Stream]]:
    """Yield names, classes and shapes of arrays, with a stream that goes on at their numbers."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    version = struct.unpack(f"{order}H", data[124:126])[0] if order else 0
    if version != 0x0100:
        raise ValueError("its header is not that of such a file")
    rest = memoryview(data)[128:]
    while len(rest):
        kind, size = struct.unpack(f"{order}II", rest[:8])
        body, rest = rest[8 : 8 + size], rest[8 + size :]
        if len(body) < size:
            raise ValueError("it is cut off")
        stream = _Stream(body, kind == _COMPRESSED, order or "<")
        if kind == _COMPRESSED:
            kind = stream.tag()[0]
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} where an array should be")
        flags = stream.element(_UINT32)
        form = struct.unpack(f"{stream.order}I", flags[:4])[0] & 0xFF
        axes = stream.element(_INT32)
        shape = struct.unpack(f"{stream.order}{len(axes) // 4}i", axes)
        name = stream.element(_INT8).decode("ascii")
        yield name, _CLASSES[form] if form < len(_CLASSES) else "unknown", shape, stream


def _numbers(stream: _Stream, shape: tuple[int, ...], packed: int) -> bytes | memoryview:
    """Return the bytes of an array of this shape, if as many are there, in a file of `packed` bytes."""
    kind, size, small = stream.tag()
    if kind != _UINT8 or size != math.prod(shape) or min(shape) < 1:
        raise ValueError(f"{size} numbers of type {kind} for an array of shape {shape}")
    check_ratio(packed, size)
    found = small if len(small) else stream.read(size)
    stream.check_end()
    return found
