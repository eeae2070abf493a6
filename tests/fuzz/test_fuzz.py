"""Every reader of files, fed with hostile and damaged ones: it reads them, or says what is wrong.

`make fuzz` does the same with many more, and keeps what fails in `build/fuzz`.
"""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.driver import environment, fuzz
from fuzz.targets import HERE, TARGETS
from kaem.cli import main

CASES = 100


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_files_are_read_or_refused(name, tmp_path):
    """Within 5 seconds and 2 GiB each; nothing is run, nothing is written elsewhere."""
    result = fuzz(name, CASES, tmp_path)
    assert not result.problems, "\n".join(result.problems)
    assert sum(result.counts.values()) == CASES + len(TARGETS[name].hostile)
    assert result.counts["read"]
    assert result.counts["refused"] > CASES / 4  # or the mutations do nothing


def test_mutations_are_the_same_every_time():
    target = TARGETS["npy"]
    first, again, other = (target.case(random.Random(seed)) for seed in ("a", "a", "b"))
    assert first == again != other


def test_the_corpus_is_small():
    files = [
        path for path in HERE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert sum(path.stat().st_size for path in files) < 100_000


@pytest.mark.parametrize(
    ("name", "case", "arguments"),
    [
        ("npz", "a bomb", ["train", "{}", "--dry-run"]),
        ("idx", "a bomb behind a small claim", ["train", "{}", "--dry-run"]),
        ("cifar", "a bomb beside the batches", ["train", "{}", "--dry-run"]),
        ("images", "50,000 x 50,000 pixels", ["train", "{folder}", "--dry-run"]),
        ("zip", "a name of control characters", ["train", "{}", "--dry-run"]),
        ("zip", "a member that is encrypted", ["train", "{}", "--dry-run"]),
        ("toml", "hexadecimal for a table", ["train", "digits-kan", "--dry-run", "--config", "{}"]),
        ("toml", "a long name", ["train", "digits-kan", "--dry-run", "--config", "{}"]),
        ("model", "a header of lists", ["sample", "{}", "-n", "1"]),
        ("model", "one array 300,000 times", ["sample", "{}", "-n", "1"]),
        ("record", "data that say nothing", ["info", "{folder}"]),
        ("history", "lists by the million", ["info", "{folder}"]),
    ],
)
def test_the_command_line_says_it_in_one_paragraph(name, case, arguments, tmp_path, capsys):
    target = TARGETS[name]
    path = tmp_path / target.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "history":
        (path.parent / "config.json").write_bytes(TARGETS["record"].seeds()[0])
    made = target.hostile[case]
    path.write_bytes(made() if callable(made) else made)
    places = (argument.format(path, folder=path.parent) for argument in arguments)
    assert main(list(places)) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"kaem: [^\n\x1b]{20,3000}\n", error), error
    assert "Traceback" not in error
    assert not Path("runs").exists()


SELF = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from fuzz.sandbox import attempt, prepare

folder = Path(sys.argv[1])
watch = prepare(folder)
(folder / "a").write_text("true")
for reader in (
    lambda path: os.system(path.read_text()),
    lambda path: (path.parent.parent / "x").write_text(""),
    lambda path: (path.parent / "x").write_text(""),
    lambda path: [].pop(),
):
    print(*attempt(SimpleNamespace(open=reader), folder / "a", watch))
"""


def test_the_sandbox_notices(tmp_path):
    (tmp_path / "work").mkdir()
    child = subprocess.run(
        [sys.executable, "-c", SELF, str(tmp_path / "work")],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    obeys, writes, within, raises = child.stdout.splitlines()
    assert obeys.startswith("bad it did os.system")
    assert writes.startswith("bad it did open")
    assert within.strip() == "read"
    assert raises == "bad IndexError: pop from empty list"
