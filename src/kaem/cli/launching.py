"""Training by several processes: joining those of a cluster, or starting some on this machine."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import UserError
from .options import cores
from .progress import say
from .stopping import AGAIN, Stopped

_GRACE = 30.0  # seconds that processes have to end by themselves after one of them has failed


def check(options: argparse.Namespace) -> None:
    """Raise where options of several processes contradict one another, or lack one."""
    given = [options.processes, options.process_id]
    address = options.distributed not in ("auto", "off")
    if address and None in given:
        raise UserError(
            f"--distributed {options.distributed} needs --processes N, how many there are, and "
            "--process-id I, which one this is, from 0 to N - 1."
        )
    if not address and given != [None, None]:
        raise UserError(
            "--processes and --process-id belong to --distributed HOST:PORT, the address of process 0."
        )
    if address and not 0 <= options.process_id < options.processes:
        raise UserError(
            f"--process-id must be from 0 to {options.processes - 1} for --processes "
            f"{options.processes}, got {options.process_id}."
        )
    local = options.local_processes
    if local is not None and (local < 1 or (options.distributed != "off" and not address)):
        raise UserError(
            f"--local-processes is a number from 1 and stands without --distributed, got {local} and "
            f"--distributed {options.distributed}."
        )
    if options.dry_run and (address or local is not None):
        raise UserError("--dry-run is of one process; leave out --distributed, --local-processes.")


@contextmanager
def joined(where: str, processes: int | None, process: int | None) -> Iterator[Callable[[], bool]]:
    """Be one of the processes that `--distributed` names, if it names any; a loss of one ends all.

    Yields what says, when they have parted, whether this is the one that writes and prints.
    """
    if where == "off":
        yield lambda: True
        return
    from ..processes import ProcessLost, connect, disconnect, is_first, noticing_losses

    try:
        with _quiet(), noticing_losses():
            if not connect(None if where == "auto" else where, processes, process):
                say("no other processes were found (Slurm, Open MPI, TPU): this one trains alone")
            yield is_first
            disconnect()
    except UserError:
        raise  # the others know
    except ProcessLost as error:
        say(f"kaem: another process was lost ({error}); run the same command again to go on")
        _end(AGAIN)
    except Exception:
        traceback.print_exc()
        _end(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let what libraries write to standard output go to standard error: there, results are printed."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def _end(code: int) -> None:
    """End at once: the usual way would wait for processes that will not come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launch(number: int, arguments: Sequence[str]) -> int:
    """Run a command as so many processes of this machine, which share its cores; return the exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    each = str(max(1, cores() // number))
    command = [sys.executable, "-m", "kaem", *arguments, "--distributed", address]
    children = [
        subprocess.Popen(
            [*command, "--processes", str(number), "--process-id", str(i)],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": each},
            stdin=subprocess.DEVNULL,
            stdout=None if i == 0 else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C of a terminal comes by way of this process, once
        )
        for i in range(number)
    ]
    try:
        try:
            codes = _waited(children)
        except Stopped:
            for child in children:
                child.send_signal(signal.SIGTERM)
            codes = [AGAIN if code else 0 for code in _waited(children)]
    finally:
        for child in children:
            child.kill()
    known = [code for code in codes if code in (1, 2)]
    return max(known) if known else (AGAIN if any(codes) else 0)


def _waited(children: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return the exit codes of processes; those that outlive a failed one for long are killed."""
    deadline = float("inf")
    while any(child.poll() is None for child in children):
        if any(child.returncode for child in children):
            deadline = min(deadline, time.monotonic() + _GRACE)
        if time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(0.05)
    return [child.returncode for child in children]
