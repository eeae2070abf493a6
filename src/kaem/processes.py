"""Several processes that train one model: how they find, tell and outlive one another.

They are started, and started again, by whatever a cluster has for that; JAX's own runtime connects them.
The first of them alone reads and writes the run folder. What it has to say goes to all (`told`,
`agreed`), and where one fails, all stop (`together`): none waits for a message that never comes.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from .errors import UserError


class ProcessLost(Exception):
    """Another process of a training has ended, or cannot be reached any more."""


def connect(address: str | None, processes: int | None = None, process: int | None = None) -> bool:
    """Join the other processes of a training, before JAX is used for anything else.

    Returns whether there are any: without an `address`, that is as the cluster says, if this is one.

    **Arguments:** `address` is the HOST:PORT of the first process; `processes` is how many there are,
    and `process` which one this is, from 0.
    """
    bind = None
    if address is not None and process == 0:
        host, _, port = address.rpartition(":")
        local = host in ("127.0.0.1", "localhost")
        bind = f"127.0.0.1:{port}" if local else None  # else from other machines, too
        _check_free(int(port))
    try:
        jax.distributed.initialize(
            address, processes, process, initialization_timeout=120, coordinator_bind_address=bind
        )
    except (RuntimeError, ValueError) as error:
        if address is None and "coordinator_address should be defined" in str(error):
            return False
        what = f"at {address} " if address else "of a cluster "
        raise UserError(
            f"the other processes {what}were not found ({str(error).splitlines()[0]}). Give the address "
            "HOST:PORT of process 0, how many processes there are, and which one this is; under Slurm or "
            "Open MPI, and on TPUs, give nothing."
        ) from error
    return jax.process_count() > 1


def _check_free(port: int) -> None:
    """Raise if something listens at a port already: the runtime would crash."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port} of this machine cannot be used ({error.strerror}); choose another one for all "
                "processes."
            ) from error


def disconnect() -> None:
    """Leave the other processes, when all are done with what they do together."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def is_first() -> bool:
    """Return whether this process is the one that writes, as a single one is."""
    return jax.process_index() == 0


def name() -> str:
    """Return what to call this process in a message."""
    return f"process {jax.process_index()} on {socket.gethostname()}"


def agreed(value: Any) -> Any:
    """Return what the first process says: a number, or an array of a shape that all know."""
    if jax.process_count() == 1:
        return value
    from jax.experimental.multihost_utils import broadcast_one_to_all

    found = np.asarray(broadcast_one_to_all(np.asarray(value)))
    return found if found.ndim else found.item()


def told(message: bytes = b"") -> bytes:
    """Return the message of the first process."""
    if jax.process_count() == 1:
        return message
    content = np.frombuffer(message, np.uint8)
    if not is_first():
        content = np.zeros(agreed(0), np.uint8)
    else:
        agreed(len(content))
    return bytes(agreed(content)) if content.size else b""


def any_of(flag: bool) -> bool:
    """Return whether any process says so."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(np.any(process_allgather(np.asarray(flag))))


@contextmanager
def together(what: str) -> Iterator[None]:
    """Do something that may fail in one process; then all raise, those that did not fail a `UserError`."""
    try:
        yield
    except ProcessLost:
        raise
    except BaseException:
        any_of(True)
        raise
    if any_of(False):
        raise UserError(f"another process could not {what}; its own message says why.")


@contextmanager
def noticing_losses() -> Iterator[None]:
    """Raise `ProcessLost` where what processes do together fails because one of them is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        # Of one type or the other, by where it is noticed. No memory is no loss.
        said = str(error)
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in said or not _is_lost(said):
            raise
        raise ProcessLost(said.splitlines()[0]) from error


def _is_lost(said: str) -> bool:
    """Return whether an error is one of talking to other processes, as the runtime words it."""
    words = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "coordination", "peer")
    return any(word in said for word in words)
