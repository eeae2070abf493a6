"""Ctrl-C and SIGTERM as a question that training answers when it can."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C (or SIGTERM) within only raise a flag; the second interrupts at once."""
    pressed = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are somebody else's
        previous = {}
    try:
        yield lambda: pressed
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
