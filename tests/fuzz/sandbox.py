"""One process that opens hostile files, and notices whatever but a `UserError` comes of it."""

import contextlib
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 5  # that opening one file may take
MEGABYTES = 2048  # that the process may ever have had in memory
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEVER = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
}
_NEVER |= {"socket.connect", "socket.bind"}
_CHANGING = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
}


class Hang(BaseException):
    """Not an Exception, which readers of damaged files catch."""


class Watch:
    """What Python does behind a reader's back: files written elsewhere, programs started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.on = str(folder.resolve()), [], False
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _NEVER:
            self.seen.append(f"{event} {arguments}"[:200])
        elif event in _CHANGING or (event == "open" and (arguments[2] or 0) & _WRITING):
            place = arguments[0]
            inside = isinstance(place, int) or os.path.realpath(place).startswith(self.folder)
            if not inside and os.path.realpath(place) != os.devnull:
                self.seen.append(f"{event} {arguments}"[:200])


def _interrupted(*_: Any) -> None:
    raise Hang


def peak() -> float:
    """Return the most megabytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1e6 if sys.platform == "darwin" else 1e3
    )


def attempt(target: Any, path: Path, watch: Watch) -> tuple[str, str]:
    """Open a file. Returns "read" or "refused" with what was said, or "bad" with what is wrong."""
    from kaem import UserError

    before, started = peak(), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 2 * SECONDS)
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
    watch.seen, watch.on = [], True
    try:
        target.open(path)
        result = "read", ""
    except UserError as error:
        result = "refused", str(error)
        if len(result[1]) > 2000:
            result = "bad", f"a message of {len(result[1])} characters: {result[1][:100]}..."
    except Hang:
        result = "bad", "it does not end"
    except BaseException as error:
        result = "bad", f"{type(error).__name__}: {error}"[:500]
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    if watch.seen:
        return "bad", f"it did {watch.seen[0]}"
    if (seconds := time.monotonic() - started) > SECONDS:
        return "bad", f"it took {seconds:.1f} s ({result[1][:200]})"
    if (now := peak()) > max(MEGABYTES, before + 1):
        return "bad", f"it took {now:.0f} MB, {before:.0f} MB before ({result[1][:200]})"
    return result


def prepare(folder: Path) -> Watch:
    """Make this process one that may be fed with anything."""
    signal.signal(signal.SIGALRM, _interrupted)
    sys.dont_write_bytecode = True
    warnings.simplefilter("error")
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return Watch(folder)


def run(target: Any, folder: Path, cases: range, seed: int, tell: Callable[..., None]) -> None:
    """Open the target's hostile files, then mutations of its seeds, and tell what comes of each.

    The file that is open is `folder/target.file`: if this process dies, it is there.
    """
    watch = prepare(folder)
    path = folder / target.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(target.seeds()[0])
    with contextlib.suppress(Exception):
        target.open(path)  # imports what it needs
    for number, data in enumerate(target.seeds()):
        path.write_bytes(data)
        outcome, said = attempt(target, path, watch)
        if outcome != "read":
            tell(f"seed {number}", "bad", f"a good file is {outcome}: {said}", data)
    if cases.start == 0:
        for name, make in target.hostile.items():
            data = make() if callable(make) else make
            path.write_bytes(data)
            outcome, said = attempt(target, path, watch)
            expected = "read" if name.startswith("good") else "refused"
            if outcome not in (expected, "bad"):
                outcome, said = "bad", f"it is {outcome}, not {expected}: {said}"
            tell(name, outcome, said, None)
    for number in cases:
        data = target.case(random.Random(f"{target.name} {seed} {number}"))
        path.write_bytes(data)
        tell(str(number), *attempt(target, path, watch), data)


def main(arguments: list[str]) -> int:
    """Be the child of `fuzz.driver`: TARGET FOLDER FIRST LAST SEED."""
    from .targets import TARGETS

    target, folder = TARGETS[arguments[0]], Path(arguments[1])
    first, last, seed = map(int, arguments[2:5])
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    with open(folder / "report.jsonl", "a", encoding="utf8") as report:

        def tell(case: str, outcome: str, said: str, data: bytes | None) -> None:
            entry = {
                "case": case,
                "outcome": outcome,
                "said": said[:400],
                "megabytes": round(peak()),
            }
            if outcome == "bad" and data is not None:
                entry["file"] = str(folder / f"{target.name}-{case.replace(' ', '-')}")
                Path(entry["file"]).write_bytes(data)
            report.write(json.dumps(entry) + "\n")
            report.flush()

        run(target, folder / "work", range(first, last), seed, tell)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
