"""One writer at a time: a live process keeps others out, a dead one does not, and readers do not ask."""

import errno
import fcntl
import os
import socket

import pytest

import kaem
from kaem import UserError
from kaem.cli import main
from kaem.runs import RunFolder, align
from kaem.runs.locking import writing
from support.commands import SETTINGS
from support.runs import contents, process

# Without our code: what the kernel knows as locked.
HOLD = """
import fcntl, os, socket
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), socket.gethostname(), file=file, flush=True)
print("held", flush=True)
sys.stdin.read()
""".strip().replace("\n", "; ")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "digits-kan", "--steps", "10", "--out", str(out), *SETTINGS]) == 0
    return RunFolder(out)


def test_a_second_process_is_told_who_writes_and_changes_nothing(run, tmp_path, capsys):
    command = ["train", "digits-kan", "--steps", "20", "--out", str(run.path), *SETTINGS]
    before = contents(run.path)
    with process(run.lock_file, program=HOLD, stdin=-1) as holder:
        assert holder.stdout.readline() == "held\n"
        for resume in (["--resume", "auto"], ["--resume"]):
            sets = SETTINGS if "auto" in resume else ["--no-report"]
            assert main([*command[:6], *sets, *resume]) == 2
            told = capsys.readouterr().err
            assert f"is being written by process {holder.pid} on {socket.gethostname()}" in told
        assert {p: b for p, b in contents(run.path).items() if p != run.lock_file} == before
        # Those who read need not wait.
        assert kaem.sample(run.path, 2).shape == (2, 28, 28, 1)
        assert main(["info", str(run.path)]) == 0
        assert main(["plot", str(run.path), "training", "-o", str(tmp_path / "figures")]) == 0
        holder.kill()
    assert run.lock_file.is_file()  # left by the dead, and in nobody's way
    assert main([*command, "--resume", "auto"]) == 0
    assert run.step() == 20
    assert not run.lock_file.exists()


def test_a_run_that_is_being_made_is_nobody_elses(tmp_path, capsys):
    new = RunFolder(tmp_path / "deep" / "new")
    with writing(new):
        assert new.lock_file.read_text().split() == [str(os.getpid()), socket.gethostname()]
        assert main(["train", "digits-kan", "--out", str(new.path), *SETTINGS]) == 2
        assert f"written by process {os.getpid()}" in capsys.readouterr().err
        new.lock_file.write_text("nonsense")
        with pytest.raises(UserError, match="written by another process"), writing(new):
            pass
    assert not new.path.exists()  # nothing was begun


def test_aligning_writes_alone(run, tmp_path):
    new = RunFolder(tmp_path / "aligned")
    with writing(new), pytest.raises(UserError, match="is being written by"):
        align(run, new.path, examples=300)
    assert not new.path.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, capsys, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(["train", "digits-kan", "--out", str(tmp_path / "r"), *SETTINGS]) == 2
    told = capsys.readouterr().err
    assert f"cannot be locked ({os.strerror(number)})" in told
    assert "--out" in told
    assert not (tmp_path / "r" / "config.json").exists()
