"""Processes that decode examples into one file, each example to its own place.

They are programs of their own (`kaem.data.worker`) that read tasks and write reports, a line of JSON
each: what the caller's program is, and whether it may be started twice, does not matter, and nothing
is pickled. They end when their input does, whatever becomes of this process.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from .decoding import Source

_PACKAGE = Path(__file__).resolve().parents[2]


def cores() -> int:
    """Return how many processes decode: one for each core that this one may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_into(source: "Source", path: Path, offset: int, progress: Callable[[int], None]) -> None:
    """Write the examples of a source into a file, from byte `offset` on; `progress` is told how many are done."""
    tasks = list(source.tasks())
    target = {"target": str(path), "offset": offset, "shape": source.shape}
    first = source.recipe() | target | {"dtype": source.dtype.str}
    count = max(1, min(cores(), len(tasks)))
    workers = [_Worker(first) for _ in range(count)]
    free: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def read(task: dict[str, Any]) -> dict[str, Any]:
        worker = free.get()
        report = worker(task)
        free.put(worker)
        return report

    done, pool = 0, ThreadPoolExecutor(count)
    try:
        for task, report in zip(tasks, pool.map(read, tasks), strict=True):
            source.heard(task, report["report"])
            done += report["count"]
            progress(done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()
        pool.shutdown()


class _Worker:
    """One process; a call makes it read one task."""

    def __init__(self, first: dict[str, Any]) -> None:
        path = os.pathsep.join(filter(None, [str(_PACKAGE), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kaem.data.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            text=True,
            encoding="utf8",
        )
        self.first: dict[str, Any] | None = first

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with contextlib.suppress(OSError, ValueError):  # it may be gone
            if self.first is not None:
                self.process.stdin.write(json.dumps(self.first) + "\n")
                self.first = None
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise UserError(
                f"a process that decoded data ended with code {self.process.wait()}; the system may have "
                "ended it for want of memory. Try again with nothing else running."
            )
        report: dict[str, Any] = json.loads(line)
        if "error" in report:
            raise UserError(report["error"])
        return report

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a task that it never read
                    pipe.close()
