"""`kaem train`: what it leaves on disk, how it goes on, and what a terminal shows."""

import contextlib
import errno
import json
import os
import pty
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from kaem.cli import main
from kaem.runs.folder import RunFolder
from support.commands import SETTINGS, kaem


def test_train_leaves_the_run_folder_of_the_design(trained):
    sheets = ("samples/00000010.png", "samples/00000020.png")
    model = ("model.safetensors", "checkpoints/00000020/state.safetensors")
    for name in ("config.json", "history.jsonl", *model, *sheets):
        assert (trained / name).is_file(), name
    record = json.loads((trained / "config.json").read_text())
    assert record["settings"]["prior"]["latents"] == 1
    assert record["data"]["shape"] == [300, 28, 28, 1]
    assert [r["step"] for r in RunFolder(trained).history()] == [5, 10, 15, 20]


def test_an_existing_run_is_refused_and_untouched(trained, capsys):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    assert main(["train", "digits-kan", "--out", str(trained)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before


def test_a_model_is_never_overwritten_by_going_backwards(trained, tmp_path, capsys):
    """Without its checkpoints a run cannot go on; with an older one it can, and keeps its model."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "checkpoints")
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    resume = ["train", "digits-kan", "--out", str(copy), "--resume", "--no-report"]
    assert main([*resume, "--steps", "25"]) == 2
    message = capsys.readouterr().err
    assert "model of step 20" in message
    assert "--finetune" in message
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before

    shutil.copytree(trained / "checkpoints", copy / "checkpoints")
    (copy / "checkpoints" / "00000020" / "state.safetensors").write_bytes(b"damaged")
    assert main([*resume, "--steps", "15"]) == 2
    assert "15 steps end before it" in capsys.readouterr().err
    model = (copy / "model.safetensors").read_bytes()
    assert main([*resume, "--steps", "20"]) == 0
    assert "stays until" in capsys.readouterr().err
    assert (copy / "model.safetensors").read_bytes() == model  # replayed to the same bits
    assert main([*resume, "--steps", "25"]) == 0
    assert RunFolder(copy).step() == 25


def test_resume_extends_a_run(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    kaem("train", "digits-kan", "--out", copy, "--resume", "--steps", 30, "--no-report")
    assert RunFolder(copy).history()[-1]["step"] == 30
    assert RunFolder(copy).settings().training.steps == 30
    kaem("train", "mnist-paper", "--out", copy, "--resume", code=2)
    assert "is a run of 'digits-kan'" in capsys.readouterr().err
    for change in (["--set", "model.noise=1"], ["--steps", 10]):
        kaem("train", "digits-kan", "--out", copy, "--resume", *change, code=2)


def test_dry_run_writes_nothing(tmp_path, capsys):
    out = tmp_path / "dry"
    assert main(["train", "digits-kan", "--dry-run", "--json", "--out", str(out), *SETTINGS]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not out.exists()
    assert plan["latents"] == [3, 1]
    assert plan["model"] == "KAEM"
    prior = 3 * 6 + 3 + 1  # coefficients, base weights, tau
    assert plan["parameters"]["prior"] == prior
    assert plan["seconds_per_update"] > 0
    assert plan["memory_mib"]["state"] > 0


def test_training_on_ones_own_arrays_and_folders(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "mine.npy", rng.random((64, 6)).astype(np.float32))
    args = ["--steps", "10", *SETTINGS, "--set", "data.limit=none"]
    assert main(["train", str(tmp_path / "mine.npy"), "--out", str(tmp_path / "r1"), *args]) == 0
    assert main(["sample", str(tmp_path / "r1"), "-o", str(tmp_path / "x.png")]) == 2
    assert "use -o FILE.npz" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "r1"), "-n", "3"]) == 0  # what fits is the default
    assert np.load("samples.npz")["x"].shape == (3, 6)
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(folder / f"{i:02d}.png")
    assert main(["train", str(folder), "--out", str(tmp_path / "r2"), *args]) == 0
    assert main(["sample", str(tmp_path / "r2"), "-n", "3", "-o", str(tmp_path / "y.png")]) == 0


def test_data_that_is_no_image_trains_without_sheets(tmp_path, capsys):
    np.save(tmp_path / "five.npy", np.zeros((64, 4, 4, 5), np.float32))
    out = tmp_path / "r"
    args = [*SETTINGS, "--set", "data.limit=none", "--steps", "10", "--out", str(out), "--json"]
    assert main(["train", str(tmp_path / "five.npy"), *args]) == 0
    assert not (out / "samples").exists()
    assert not (out / "report.html").exists()  # nobody wanted it
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is not JSON


def test_wrong_shape_for_a_run_is_refused(trained, capsys, tmp_path):
    np.save(tmp_path / "other.npy", np.zeros((300, 4, 4, 1), np.uint8))
    other = ["--data", tmp_path / "other.npy", "--steps", 30]
    kaem("train", "digits-kan", "--out", trained, "--resume", *other, code=2)
    assert "data differs" in capsys.readouterr().err


def failing(function, number, code):
    """Return the function, whose calls fail with an error of the system from the one of this number on."""
    calls = []

    def call(*arguments, **named):
        calls.append(arguments)
        if len(calls) >= number:
            raise OSError(code, os.strerror(code))
        return function(*arguments, **named)

    return call


@pytest.mark.parametrize(
    ("name", "code", "numbers"),
    [
        (
            "fsync",
            errno.ENOSPC,
            range(1, 8),
        ),  # config, samples, checkpoint and model of step 10, ...
        ("replace", errno.EDQUOT, range(2, 6)),
    ],
)
def test_a_full_disk_loses_nothing_that_was_saved(
    trained, tmp_path, monkeypatch, capsys, name, code, numbers
):
    """Whichever write fails, first: the message says how to go on, and going on gives the same bytes."""
    for number in numbers:
        out = tmp_path / f"full-{number}"
        command = ["train", "digits-kan", "--steps", "20", "--out", str(out), *SETTINGS]
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(getattr(os, name), number, code))
            assert main([*command, "--resume", "auto"]) == 2
        message = capsys.readouterr().err
        assert os.strerror(code) in message
        assert "Traceback" not in message
        assert not [p for p in out.rglob("*") if ".tmp" in p.name]
        assert out.exists() == (number > 1)
        if out.exists():
            kept = [p.name for p in (out / "checkpoints").glob("0*")]
            reached = int(max(kept, default="0"))
            assert f"--out {out} --resume` goes on from step {reached}" in message
        assert main([*command, "--resume", "auto"]) == 0
        model, whole = (folder / "model.safetensors" for folder in (out, trained))
        assert model.read_bytes() == whole.read_bytes()


def test_a_history_that_cannot_be_written_is_named(trained, tmp_path, monkeypatch, capsys):
    """Where a line is cut off, it is written again."""
    out = tmp_path / "run"
    command = ["train", "digits-kan", "--steps", "20", "--out", str(out), *SETTINGS]
    real = RunFolder.log

    def log(self, record):
        if record["step"] < 15:
            return real(self, record)
        with open(self.history_file, "a") as file:
            file.write('{"step": 15, "sec')
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", failing(open, 1, errno.ENOSPC))
            return real(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", log)
        assert main(command) == 2
    message = capsys.readouterr().err
    assert f"could not write {out / 'history.jsonl'}: No space left on device" in message
    assert "goes on from step 10" in message
    assert main([*command, "--resume", "auto"]) == 0
    assert [r["step"] for r in RunFolder(out).history()] == [5, 10, 15, 20]
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_terminal_gets_a_progress_bar(tmp_path):
    """On a real pseudo-terminal."""
    leader, follower = pty.openpty()
    train = ["train", "digits-kan", "--steps", "10", "--out", str(tmp_path / "r"), *SETTINGS]
    streams = {"stdout": follower, "stderr": follower}
    terminal = os.environ | {"COLUMNS": "150", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-m", "kaem", *train], **streams, env=terminal)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(leader, 65536):
            shown += piece
    os.close(leader)
    assert process.wait() == 0
    assert b"10/10" in shown
    assert "━".encode() in shown
