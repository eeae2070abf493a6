"""Fuzzing every reader of files, each in processes of its own: `python -m fuzz`, see `make fuzz`."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A reader compiles nothing; what JAX might keep of it would be written outside of the folder.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
_ENVIRONMENT |= {
    "JAX_NUM_CPU_DEVICES": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass
class Result:
    """What came of a target's files."""

    counts: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    said: dict[str, tuple[str, str]] = field(default_factory=dict)  # outcome and message by case
    megabytes: int = 0


def environment() -> dict[str, str]:
    """Return the variables of a child, which imports this tree."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return os.environ | _ENVIRONMENT | {"PYTHONPATH": path}


def fuzz(name: str, cases: int, folder: Path, seed: int = 0) -> Result:
    """Open hostile files and `cases` mutations with one target; what fails is kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    report, first, result = folder / "report.jsonl", 0, Result()
    report.unlink(missing_ok=True)
    while True:
        command = [sys.executable, "-m", "fuzz.sandbox", name, str(folder), str(first), str(cases)]
        child = subprocess.run(
            [*command, str(seed)],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if child.returncode == 0:
            break
        done = (
            [json.loads(line) for line in report.read_text("utf8").splitlines()]
            if report.exists()
            else []
        )
        numbers = [int(entry["case"]) for entry in done if entry["case"].isdecimal()]
        kept = _keep(name, folder, len(result.problems))
        tail = child.stderr.decode(errors="replace")[-600:]
        result.problems.append(
            f"{name}: the process ended with {child.returncode} at {kept}: {tail}"
        )
        if not numbers and first == 0:
            break  # not even the seeds
        first = max(numbers, default=first) + 2  # after the one at which it ended
    for line in report.read_text("utf8").splitlines() if report.exists() else ():
        entry = json.loads(line)
        result.counts[entry["outcome"]] += 1
        result.said[entry["case"]] = entry["outcome"], entry["said"]
        result.megabytes = max(result.megabytes, entry["megabytes"])
        if entry["outcome"] == "bad":
            again = f" ({reproduce(name, entry['file'])})" if "file" in entry else ""
            result.problems.append(f"{name}, {entry['case']}: {entry['said']}{again}")
    return result


def _keep(name: str, folder: Path, number: int) -> str:
    from .targets import TARGETS

    current = folder / "work" / TARGETS[name].file
    if not current.is_file():
        return "no file"
    kept = folder / f"{name}-ended-{number}"
    shutil.copyfile(current, kept)
    return reproduce(name, str(kept))


def reproduce(name: str, file: str) -> str:
    """Return the command that opens one file again."""
    return f"PYTHONPATH=src:tests python -m fuzz {name} --one {file}"
