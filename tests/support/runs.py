"""Those who watch a run, what it logged, and a command in a process of its own."""

import os
import signal
import subprocess
import sys

from kaem.runs import Watcher


class Listener(Watcher):
    """Keeps what it is told, and asks for a stop at some steps."""

    def __init__(self, *stops):
        self.stops, self.told = stops, []

    def log(self, step, metrics, speed):
        if step in self.stops:
            os.kill(os.getpid(), signal.SIGTERM)

    def say(self, message):
        self.told.append(message)


def numbers(run):
    """Return the history without times."""
    return [{**record, "seconds": 0} for record in run.history()]


def contents(folder):
    """Return the bytes of all files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def process(*arguments, program="from kaem.cli import main; sys.exit(main(sys.argv[1:]))", **more):
    """Start a command, or another Python `program`, with its messages in a pipe."""
    command = [sys.executable, "-c", f"import sys; {program}", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )
