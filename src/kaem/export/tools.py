"""Programs that verification runs: found, asked for their version, or named with the package to install."""

import re
import shutil
import subprocess
from pathlib import Path

from ..errors import UserError

# Of compilers: any warning is an error of ours.
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


class MissingTool(UserError):
    """A program that is not on this machine."""

    def __init__(self, program: str, package: str) -> None:
        super().__init__(
            f"verification needs the program {program}, which is not on this machine; install the "
            f"Debian package {package} (`apt install {package}`), or export without `--verify`."
        )
        self.package = package


def find(program: str, package: str | None = None) -> str:
    """Return the path of a program, which a Debian package has: one of the same name, unless given."""
    path = shutil.which(program)
    if path is None:
        raise MissingTool(program, package or program)
    return path


def version(program: str) -> str:
    """Return a program's name and the first number with a dot that it prints, such as `gcc 12.2.0`."""
    for flag in ("--version", "-V"):
        printed = subprocess.run([program, flag], capture_output=True, text=True, check=False)
        number = re.search(r"\d+(\.\d+)+", printed.stdout + printed.stderr)
        if number is not None:
            return f"{Path(program).name} {number[0]}"
    return Path(program).name


def run(
    command: list[str],
    folder: Path,
    data: bytes = b"",
    *,
    codes: tuple[int, ...] = (0,),
    seconds: float = 600,
) -> bytes:
    """Return what a command prints; if it ends with none of `codes`, what it said becomes the error."""
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, timeout=seconds)
    if done.returncode not in codes:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RuntimeError(
            f"{Path(command[0]).name} ended with code {done.returncode}: {said[-2000:]}"
        )
    return done.stdout
