"""Ctrl-C and SIGTERM: a command ends in good order, soon, and says by its exit code that it may be run again."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

AGAIN = 75  # EX_TEMPFAIL of sysexits.h: files are whole, and the same command does the rest
AT_ONCE = 130  # by a second signal
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 20.0  # seconds in which a command may end by itself; compiling hears of no signal
_IMPATIENCE = 1.0  # after the second


class Stopped(KeyboardInterrupt):
    """The first signal, where nothing has to be finished before the end."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM raise `Stopped` and the second `KeyboardInterrupt`; soon, end in any case.

    Training answers the first in its own way. Handlers run between two lines of Python, which may be
    minutes apart: a thread sees to it that the process ends before. Since files appear whole or not at
    all, that loses what was done since the last was written, and nothing else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are somebody else's
        return
    pressed = False

    def handler(number: int, frame: Any) -> None:
        nonlocal pressed
        again, pressed = pressed, True
        raise KeyboardInterrupt if again else Stopped

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, handler) for number in _SIGNALS}
    watch = threading.Thread(target=_watch, args=(reader,), daemon=True)
    watch.start()
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(woken)
        writer.close()
        watch.join()
        reader.close()


def _watch(reader: socket.socket) -> None:
    """End the process some time after a signal, unless the other end is closed before."""
    deadline, code = None, AGAIN
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([reader], [], [], left)[0]:
            with suppress(OSError):  # whoever listened may have been stopped, too
                os.write(2, b"kaem: stopped; run it again to go on\n")
            os._exit(code)
        numbers = reader.recv(64)
        if not numbers:
            return
        for _ in (number for number in numbers if number in _SIGNALS):
            if deadline is None:
                deadline = time.monotonic() + _PATIENCE
            else:
                deadline, code = time.monotonic() + _IMPATIENCE, AT_ONCE
