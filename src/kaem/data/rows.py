"""Examples in a file on disk, indexed like an array, and read when they are asked for.

They are read by position and not mapped into memory: what was read once is in the page cache of the
system, which may let it go, and not in the memory of the process.
"""

import hashlib
import io
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, Self

import numpy as np

from ..errors import UserError
from ..files import blocks


@dataclass(frozen=True)
class Layout:
    """Where the numbers of an array lie in a file."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    by_columns: bool = False  # as Fortran has it: the numbers of an example lie far apart

    def opened(self) -> "np.ndarray | Rows":
        """Return the examples."""
        dtype = np.dtype(self.dtype)
        if not self.by_columns:
            return Rows(self)
        return np.memmap(self.path, dtype, "r", self.offset, tuple(self.shape), "F")


@dataclass(frozen=True)
class Survey:
    """What reading every example once tells of them."""

    sha256: str  # of their bytes in memory
    low: float
    high: float
    bad: int = 0  # examples with numbers that are not finite
    first_bad: int = 0
    largest: float | None = None  # of numbers that were finite before they became float32


class Rows:
    """Examples of one shape, one after the other in a file; what is not uint8 is read as float32."""

    def __init__(self, layout: Layout, survey: Survey | None = None) -> None:
        """Open the file, which stays open, even if it is removed."""
        self.layout, self.shape = layout, tuple(layout.shape)
        self._stored_as = np.dtype(layout.dtype)
        self.dtype = np.dtype(np.uint8 if self._stored_as == np.uint8 else np.float32)
        self._file, self._lock = io.FileIO(layout.path), Lock()
        weakref.finalize(self, self._file.close)
        if survey is not None:
            self.survey = survey

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes that all examples would fill in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("examples on disk become an array only by reading them, which copies.")
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, index: Any) -> Any:
        """Return the examples at an integer, a slice, or an array of integers of any shape."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self[np.arange(start, stop, step)]
        which = np.asarray(index)
        if not which.size:
            which = which.astype(int)
        if which.dtype.kind not in "iu" or isinstance(index, tuple):
            raise IndexError(
                f"examples on disk are indexed by integers, arrays of them or a slice, got {index!r}."
            )
        flat = which.ravel().astype(np.int64)
        beyond = (flat < -len(self)) | (flat >= len(self))
        if beyond.any():
            raise IndexError(f"there is no example {flat[beyond][0]} among {len(self)}.")
        return self._read(flat % len(self)).reshape(*which.shape, *self.shape[1:])

    def reshape(self, *shape: Any) -> Self:
        """Return the same examples with another shape each; their number stays."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if wanted[:1] != self.shape[:1] or math.prod(wanted) != math.prod(self.shape):
            raise ValueError(f"cannot reshape examples on disk from {self.shape} to {wanted}.")
        return type(self)(replace(self.layout, shape=wanted), self.__dict__.get("survey"))

    @cached_property
    def survey(self) -> Survey:
        """Return what reading every example once tells of them."""
        found, low, high = hashlib.sha256(), math.inf, -math.inf
        bad, first_bad, largest, seen = 0, 0, 0.0, 0
        for block in blocks(self):
            found.update(np.ascontiguousarray(block).data)
            low, high = min(low, float(block.min())), max(high, float(block.max()))
            wrong = ~np.isfinite(block.reshape(len(block), -1)).all(axis=1)
            if wrong.any():
                given = self._stored(np.arange(seen, seen + len(block)))
                largest = float(np.maximum(largest, np.abs(given).max()))
                first_bad = first_bad if bad else seen + int(np.argmax(wrong))
                bad += int(wrong.sum())
            seen += len(block)
        known = largest if bad and math.isfinite(largest) else None
        return Survey(found.hexdigest(), low, high, bad, first_bad, known)

    def _read(self, which: np.ndarray) -> np.ndarray:
        """Return examples by numbers from 0, in the type that they have in memory."""
        read = self._stored(which)
        with np.errstate(over="ignore"):  # who surveys them finds what is no longer finite
            return read.astype(self.dtype, copy=False)

    def _stored(self, which: np.ndarray) -> np.ndarray:
        """Return examples as the file has them; those that lie together are read together, in its order."""
        size = math.prod(self.shape[1:]) * self._stored_as.itemsize
        read = np.empty((len(which), *self.shape[1:]), self._stored_as)
        if not read.size:
            return read
        content = read.reshape(-1).view(np.uint8).data
        begins = np.flatnonzero(np.diff(which, prepend=which[0] - 2) != 1)
        ends = np.append(begins[1:], len(which))
        order = np.argsort(which[begins], kind="stable")
        for begin, end in zip(begins[order].tolist(), ends[order].tolist(), strict=True):
            self._fill(
                content[begin * size : end * size], self.layout.offset + int(which[begin]) * size
            )
        return read

    def _fill(self, content: memoryview, position: int) -> None:
        with self._lock:
            self._file.seek(position)
            while content:
                got = self._file.readinto(content)
                if not got:
                    raise UserError(
                        f"{self.layout.path} ends before its examples do: it was changed while it was read. "
                        "Restore it and try again."
                    )
                content = content[got:]


Examples = np.ndarray | Rows  # in memory, or on disk
