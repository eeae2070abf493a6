"""Progress: a rich bar on a terminal, plain lines elsewhere; always on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import printable

_SHOWN = {
    "log_likelihood": "log p(x|z) {:.1f}",
    "log_prior": "log p(z) {:.1f}",
    "kl": "KL {:.1f}",
    "ess": "ESS {:.1f}",
    "reconstruction": "squared error {:.4f}",
    "denoising_error": "error of the noise {:.4f}",
}


def _summary(metrics: dict[str, float]) -> str:
    shown = [text.format(metrics[name]) for name, text in _SHOWN.items() if name in metrics]
    swaps = [value for name, value in metrics.items() if name.startswith("swap_")]
    if swaps:
        shown.append(f"swaps {min(swaps):.2f} to {max(swaps):.2f}")
    return "  ".join(shown)


def say(message: str) -> None:
    """A line on standard error."""
    # A closed pipe (`kaem train ... 2>&1 | head`) ends the reading, not the training.
    with suppress(BrokenPipeError):
        print(printable(message), file=sys.stderr, flush=True)


class _Plain:
    say = staticmethod(say)

    def __init__(self, every: float) -> None:
        self.every, self.last, self.total = every, 0.0, 0

    def begin(self, step: int, total: int) -> None:
        del step
        self.total = total

    def log(self, step: int, metrics: dict[str, float], speed: float | None) -> None:
        now = time.monotonic()
        if now - self.last < self.every and step < self.total:
            return
        self.last = now
        rate = ""
        if speed is not None:
            rate = f"  {speed:.1f} updates/s, {(self.total - step) / speed:.0f} s left"
        self.say(f"step {step}/{self.total}  {_summary(metrics)}{rate}")


class _Bar:
    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def begin(self, step: int, total: int) -> None:
        self.task = self.bar.add_task(
            "train", total=total, completed=step, info="compiling", rate=""
        )

    def log(self, step: int, metrics: dict[str, float], speed: float | None) -> None:
        rate = "" if speed is None else f"{speed:.1f}/s"
        self.bar.update(self.task, completed=step, info=_summary(metrics), rate=rate)

    def say(self, message: str) -> None:
        self.bar.console.print(printable(message), highlight=False, markup=False)


class Counter:
    """Plain lines on standard error, one every few seconds; the last of each kind always."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self.last > 5 or (done == of and now - self.last > 1):
            self.last = now
            say(f"{what}: {done}/{of}")


@contextmanager
def progress(every: float = 5.0) -> Iterator[Any]:
    """A `Watcher` of training, on standard error."""
    if not sys.stderr.isatty():
        yield _Plain(every)
        return
    from rich import progress as rich
    from rich.console import Console

    counts = (rich.BarColumn(), rich.MofNCompleteColumn(), "{task.fields[rate]}")
    times = (rich.TimeRemainingColumn(), "{task.fields[info]}")
    with rich.Progress(*counts, *times, console=Console(stderr=True)) as bar:
        yield _Bar(bar)
