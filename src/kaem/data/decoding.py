"""Examples that must be decoded: into memory by threads, or into a file of the cache by processes.

What is decoded is a `Source`: tasks that do not depend on one another, each of which says where its
examples belong. So the result does not depend on who decodes them, or on how many do.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from ..errors import UserError
from .rows import Examples
from .store import stored

Put = Callable[[int, np.ndarray], None]  # examples to where they belong, from the first's number on
Task = dict[str, Any]  # what is read at a time, and what is said of it: JSON

_MAX_GIGABYTES = 16


class Source(Protocol):
    """Examples of one shape that are decoded by tasks, by this process or others."""

    shape: tuple[int, ...]  # of all examples
    dtype: np.dtype[Any]

    @property
    def what(self) -> str:
        """Return how many there are, of what."""
        ...

    def made_of(self) -> Iterable[Any]:
        """Return everything that the examples are a function of."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return how another process makes the same, as JSON."""
        ...

    def tasks(self) -> Iterator[Task]:
        """Return the tasks, in the order of the examples."""
        ...

    def read(self, task: Task, put: Put) -> dict[str, Any]:
        """Put the examples of a task where they belong, and return what is to be said of it."""
        ...

    def heard(self, task: Task, report: dict[str, Any]) -> None:
        """Take note of what was said of a task; in order."""
        ...

    def notes(self) -> list[str]:
        """Return what is to be said in the end."""
        ...


def decoded(source: Source, memory: int | None, say: Callable[[str], None]) -> Examples:
    """Return the examples of a source: on disk, if they would fill more than `memory` bytes."""
    bytes_ = math.prod(source.shape) * source.dtype.itemsize
    if memory is not None and bytes_ > memory:
        return stored(source, say)
    if bytes_ > _MAX_GIGABYTES * 1e9:
        raise UserError(
            f"{source.what} of shape {source.shape[1:]} would fill {bytes_ / 1e9:.0f} GB in memory; "
            "make them smaller with `--set data.size=N`, or take fewer with `--set data.limit=N`."
        )
    x = np.empty(source.shape, source.dtype)

    def put(start: int, some: np.ndarray) -> None:
        x[start : start + len(some)] = some

    # In threads, because Pillow works without the GIL; in order, so that the first bad one is named.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        tasks = list(source.tasks())
        for task, report in zip(tasks, pool.map(lambda t: source.read(t, put), tasks), strict=True):
            source.heard(task, report)
    for note in source.notes():
        say(note)
    return x
