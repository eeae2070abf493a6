"""One run trained by several processes of this machine: as it would be by one, whatever happens to them."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from kaem.cli import main
from kaem.runs import RunFolder
from support.commands import SETTINGS
from support.runs import numbers, process

TWO = ("--local-processes", "2")


def command(out, *more, steps=40):
    return [
        "train",
        "digits-kan",
        "--out",
        out,
        "--steps",
        steps,
        "--resume",
        "auto",
        *SETTINGS,
        *more,
    ]


def finished(*arguments):
    with process(*arguments) as running:
        printed, told = running.communicate()
    assert running.returncode == 0, told
    return printed, told


def logged(run):
    return run.history_file.read_bytes().count(b"\n") if run.history_file.exists() else 0


def waited(run, records, running):
    """Wait until a run has logged so many more steps, or has ended."""
    least = logged(run)
    while running.poll() is None and logged(run) - least < records:
        least = min(least, logged(run))  # a resumed run cuts some off
        time.sleep(0.01)


def children(pid):
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_two_processes_stop_together_and_one_goes_on(tmp_path):
    """Their run is the one of a single process, but for rounding; one process may do the rest."""
    whole, stopped = (RunFolder(tmp_path / name) for name in ("whole", "stopped"))
    finished(*command(whole.path))
    with process(*command(stopped.path, *TWO)) as running:
        waited(stopped, 2, running)
        running.send_signal(signal.SIGTERM)
        _, told = running.communicate()
    assert running.returncode == 75, told
    assert "continue with the same command" in told
    assert not stopped.lock_file.exists()
    step = stopped.step()
    assert 0 < step < 40
    _, told = finished(*command(stopped.path))
    assert f"at step {step}" in told
    for one, two in zip(numbers(whole), numbers(stopped), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4), one["step"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--distributed", "somewhere"], "HOST:PORT of process 0"),
        (["--distributed", "localhost:99999"], "HOST:PORT of process 0"),
        (["--distributed", "localhost:²"], "HOST:PORT of process 0"),
        (["--distributed", "localhost:9999"], "needs --processes N"),
        (["--processes", "2"], "belong to --distributed"),
        (
            ["--distributed", "localhost:9999", "--processes", "2", "--process-id", "2"],
            "from 0 to 1",
        ),
        (["--local-processes", "0"], "a number from 1"),
        (["--local-processes", "2", "--distributed", "auto"], "stands without --distributed"),
        (["--local-processes", "2", "--dry-run"], "--dry-run is of one process"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, capsys, options, expected):
    assert main([str(word) for word in command(tmp_path / "run", *options)]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_one_of_them_cannot_do_ends_all_with_a_message(tmp_path):
    def refused(*arguments):
        with process(*arguments) as running:
            printed, told = running.communicate()
        assert (running.returncode, printed) == (2, ""), told
        assert "Traceback" not in told
        return told

    out = tmp_path / "run"
    odd = ("--set", "training.batch_size=25", "--set", "learner.samples=25")
    assert "2 processes cannot share an update of 25" in refused(*command(out, *TWO, *odd))
    assert not out.exists()
    assert "no dataset" in refused(*command(out, *TWO, "--data", tmp_path / "absent.npy"))
    # Other data at the second process: found by the digest that the first one tells.
    data = tmp_path / "data.npy"
    rng = np.random.default_rng(0)
    np.save(data, rng.integers(0, 255, (300, 28, 28, 1), np.uint8))
    patch = (
        "import os, numpy; real = numpy.lib.format.read_array; "
        "numpy.lib.format.read_array = lambda *a, **k: real(*a, **k) + (os.environ['RANK'] == '1'); "
        "from kaem.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    port = 20000 + os.getpid() % 20000
    where = ("--distributed", f"127.0.0.1:{port}", "--processes", "2", "--process-id")
    arguments = command(out, "--data", data)
    running = [
        process(*arguments, *where, i, program=patch, env=os.environ | {"RANK": str(i)})
        for i in range(2)
    ]
    told = [one.communicate()[1] for one in running]
    assert [one.returncode for one in running] == [2, 2], told
    assert "another process could not begin" in told[0]
    assert "process 1 on" in told[1]
    assert "reads other data than the first process" in told[1]


@pytest.mark.slow
def test_killed_at_random_moments_two_processes_end_with_the_same_bytes(tmp_path):
    """Either of the two is killed, or the one that started them; the same command does the rest."""
    kills, steps = 10, 400
    whole, killed = (RunFolder(tmp_path / name) for name in ("whole", "killed"))
    printed, _ = finished(*command(whole.path, *TWO, "--json", steps=steps))
    assert json.loads(printed)["step"] == steps
    rng = np.random.default_rng(0)
    for kill in range(kills):
        with process(*command(killed.path, *TWO, steps=steps)) as running:
            waited(killed, rng.integers(1, 5), running)
            time.sleep(rng.uniform(0, 0.3))
            assert running.poll() is None, (running.returncode, kill)
            os.kill(children(running.pid)[kill % 2], signal.SIGKILL)
            _, told = running.communicate()
        assert running.returncode == 75, told
    finished(*command(killed.path, *TWO, steps=steps))
    assert killed.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(killed) == numbers(whole)
