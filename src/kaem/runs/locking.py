"""One writer at a time: the lock of a run folder.

The kernel holds it, and lets go when the process ends, however it ends. Reading needs no lock.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

from ..errors import UserError
from .folder import RunFolder


@contextlib.contextmanager
def writing(run: RunFolder) -> Iterator[None]:
    """Let no other process train into `run` meanwhile; raise if one does. The folder is made if it is not there."""
    from filelock import FileLock, Timeout

    # A lock that other files stand for would outlive its process.
    lock = FileLock(run.lock_file, timeout=0, fallback_to_soft=False)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        if run.lock_file.exists() and run.lock_file.stat().st_nlink > 1:
            raise UserError(
                f"{run.lock_file} is another name of a file elsewhere, which locking would empty; remove it."
            )
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"{run.path} is being written by {_holder(run)}. Wait until that ends, or stop it, which "
            "keeps what it has done; or choose another folder with --out."
        ) from error
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{run.lock_file} cannot be locked ({why}), and without that two processes could write the "
            "run at once. See to that, or choose with --out a folder that can be written to, on a file "
            "system with locks."
        ) from error
    try:
        with contextlib.suppress(OSError):  # a full disk: then nobody learns who it is
            run.lock_file.write_text(f"{os.getpid()} {socket.gethostname()}\n", "utf8")
        yield
    finally:
        # Removed while it is held: whoever opened it in between sees that it is gone, and makes another.
        with contextlib.suppress(OSError):
            run.lock_file.unlink()
            if not run.config_file.exists():
                run.path.rmdir()  # if nothing is in it: the run did not begin
        lock.release()


def _holder(run: RunFolder) -> str:
    """Say which process has the lock, if it says so itself."""
    try:
        process, host = run.lock_file.read_text("utf8").split()
        return f"process {int(process)} on {host[:100]}"
    except (OSError, ValueError):
        return "another process"
