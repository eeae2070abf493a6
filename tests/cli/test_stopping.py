"""Ctrl-C and SIGTERM: exit code 75 at any moment, and the same command does the rest."""

import json
import os
import signal
import time

import pytest

from kaem.cli import main
from kaem.runs import RunFolder, session
from support.commands import SETTINGS
from support.runs import process


def command(out):
    settings = [word for word in SETTINGS if word != "--no-report"]
    start = ["train", "digits-kan", "--steps", "20", "--out", str(out), "--resume", "auto"]
    return [*start, "--json", *settings]


def signalled(function, number):
    """Return the function, which now sends this process a signal before it begins."""

    def first(*arguments, **named):
        os.kill(os.getpid(), number)
        return function(*arguments, **named)

    return first


def test_a_signal_at_any_moment_gives_75_and_the_same_command_goes_on(
    trained, tmp_path, monkeypatch, capsys
):
    """While data are loaded, before and between updates, at the last one, in the report; by either signal."""
    from kaem.interpret.figures import FIGURES
    from kaem.runs import training

    run = RunFolder(tmp_path / "run")
    capsys.readouterr()

    real = session.WritingSession._entry

    def at(step):
        def entry(self, state):
            if state.step == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(self, state)

        return entry

    figure = FIGURES["densities"]
    places = {
        "data": (training, "load_data", signalled(training.load_data, signal.SIGTERM)),
        "model": (training, "initial_state", signalled(training.initial_state, signal.SIGINT)),
        "compiling": (session, "updates", signalled(session.updates, signal.SIGTERM)),
        "updates": (session.WritingSession, "_entry", at(10)),
        "last": (session.WritingSession, "_entry", at(20)),
        "report": (type(figure), "write", signalled(type(figure).write, signal.SIGTERM)),
    }
    steps = {"compiling": 1, "updates": 10, "last": 20, "report": 20}
    for place, (owner, name, change) in places.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, change)
            assert main(command(run.path)) == 75, place
        printed, told = capsys.readouterr()
        assert "Traceback" not in told
        assert not run.report_file.exists()
        assert not run.lock_file.exists()
        if place in steps:
            result = json.loads(printed)
            assert (result["step"], result["interrupted"]) == (steps[place], True)
            assert "continue with the same command" in told
        else:
            assert printed == ""
            assert not run.config_file.exists()
    assert main(command(run.path)) == 0
    assert json.loads(capsys.readouterr().out)["files"][-1] == str(run.report_file)
    assert run.model_file.read_bytes() == (trained / "model.safetensors").read_bytes()
    # Finished: nothing is left to do, and nothing is written.
    times = run.report_file.stat().st_mtime_ns
    assert main(command(run.path)) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [
        str(run.model_file),
        str(run.report_file),
    ]
    assert run.report_file.stat().st_mtime_ns == times
    run.report_file.unlink()
    assert main([*command(run.path), "--no-report"]) == 0
    assert not run.report_file.exists()


def test_a_second_signal_ends_it_at_once(tmp_path, monkeypatch, capsys):
    """While the first stop is being written down: what was saved before is what there is."""
    run = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        for owner, name in ((session, "updates"), (session.checkpoint, "write")):
            patch.setattr(owner, name, signalled(getattr(owner, name), signal.SIGINT))
        assert main(command(run.path)) == 130
    assert "stopped at once" in capsys.readouterr().err
    assert [path.name for path in run.path.iterdir()] == ["config.json"]
    assert main([*command(run.path), "--no-report"]) == 0


# Nothing of Python runs in the main thread: what compiling for a long time is like.
BUSY = """
import hashlib, kaem.cli.stopping as s
s._PATIENCE = float(sys.argv[1]); s._IMPATIENCE = 0.1
with s.stoppable(): print("busy", flush=True); hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
""".strip()


DEAF = """
import sys, time, kaem.cli as c
c._run = lambda arguments: (print("busy", flush=True), time.sleep(20))
sys.exit(c.main([]))
""".strip()


@pytest.mark.parametrize(("patience", "signals", "code"), [(0.2, 1, 75), (60, 2, 130)])
def test_what_hears_no_signal_ends_all_the_same(patience, signals, code):
    with process(patience, program=BUSY) as busy:
        assert busy.stdout.readline() == "busy\n"
        time.sleep(0.3)  # from there into C
        began = time.monotonic()
        for _ in range(signals):
            busy.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert busy.wait(timeout=20) == code
        assert time.monotonic() - began < 10
        assert "run it again" in busy.stderr.read()


def test_nobody_has_to_listen_for_a_command_to_end_with_its_code():
    """Ctrl-C on `kaem ... 2>&1 | tee log` may stop tee first: the codes stay what schedulers wait for."""
    for program, wanted in ((BUSY, 75), (DEAF, 75)):
        with process(0.2, program=program) as busy:
            assert busy.stdout.readline() == "busy\n"
            busy.stderr.close()
            time.sleep(0.3)
            busy.send_signal(signal.SIGTERM)
            assert busy.wait(timeout=20) == wanted


def test_other_verbs_stop_too(trained, monkeypatch, capsys):
    from kaem import runs

    sample = signalled(runs.sampling.sample, signal.SIGTERM)
    monkeypatch.setattr("kaem.runs.sample", sample)
    monkeypatch.setattr("kaem.runs.sampling.sample", sample)
    assert main(["sample", str(trained), "-n", "4", "-o", "x.npz"]) == 75
    assert "stopped" in capsys.readouterr().err
    assert not os.path.exists("x.npz")


def test_a_wrong_word_after_resume_is_named(capsys):
    assert main(["train", "digits-kan", "--resume", "always"]) == 2
    assert "--resume stands alone or before the word auto" in capsys.readouterr().err
