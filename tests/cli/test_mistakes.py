"""Every mistake gets a message and exit code 2, and leaves nothing behind."""

import os

import numpy as np
import pytest

from kaem.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits-kan", "--out", ""], "out is empty"),
        (["sample", "", "-n", "1"], "run is empty"),
        (["train", "digits-kan", "--set", "model.noise=nan"], "finite number"),
        (["train", "digits-kan", "--set", "optimiser.prior_rate=inf"], "finite number"),
    ],
)
def test_nothing_and_no_number_are_refused(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def bad_inputs(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "huge.json").write_text(f'{{"training": {{"steps": 1{"0" * 399}}}}}')
    np.save(tmp_path / "nan.npy", np.full((50, 4), np.nan))
    np.save(tmp_path / "wide.npy", np.full((300, 4), 7.0))
    np.save(tmp_path / "few.npy", np.zeros((3, 4)))
    (tmp_path / "bad.toml").write_text("[prior\n")
    (tmp_path / "deep.toml").write_text("x = " + "[" * 100_000)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "list.json").write_text("[1]")
    return {
        ("train", "quickstrat"): "Did you mean quickstart",
        ("train", "/no/such/file.npy"): "neither a preset nor an existing path",
        ("train", str(tmp_path / "nan.npy")): "NaN",
        ("train", str(tmp_path / "wide.npy")): "generator.output=identity",
        ("train", str(tmp_path / "few.npy")): "one batch needs",
        ("train", "digits-kan", "--config", str(tmp_path / "bad.toml")): "cannot be read",
        ("train", "digits-kan", "--config", str(tmp_path / "absent.toml")): "cannot be read",
        ("train", "digits-kan", "--config", str(tmp_path / "deep.toml")): "cannot be read",
        ("train", "digits-kan", "--config", str(tmp_path / "deep.json")): "cannot be read",
        ("train", "digits-kan", "--config", str(tmp_path / "list.json")): "a JSON object",
        ("train", "digits-kan", "--set", "prior.domain=" + "[" * 10_000): "prior.domain must be",
        ("train", "digits-kan", "--config", str(tmp_path / "huge.json")): "has 400 digits",
        ("train", "digits-kan", "--data", str(tmp_path / "pipe.npy")): "a pipe",
        ("train", "digits-kan", "--config", str(tmp_path / "pipe.toml")): "it is not a file",
        ("train", "digits-kan", "--set", "data.size=1000000000"): "at most 16384",
        ("train", "digits-kan", "--set", "data.size=16000"): "GB in memory",
        ("train", "digits-kan", "--set", "prior.basis=bessel"): "unknown basis",
        ("train", "digits-kan", "--set", "learner.resampler=no"): "unknown resampler",
        ("train", "digits-kan", "--steps", "ten"): "invalid int value",
        ("train", "digits-kan", "--steps", "-5"): "positive",
        ("train", "mnist-paper"): "kaem data fetch mnist",
        ("train", "digits-kan", "--resume"): "not a run folder",
        ("train",): "required",
        ("fly",): "invalid choice",
        ("sample", "/no/run"): "no model",
        ("sample", "/no/run", "-n", "0"): "at least 1",
        ("sample", "/no/run", "-o", "x.gif"): ".png or .npz",
        ("plot", "/no/run", "densities"): "not a run folder",
    }


def test_every_mistake_gets_a_message_and_exit_code_2(tmp_path, capsys):
    for arguments, message in bad_inputs(tmp_path).items():
        assert main(list(arguments)) == 2, arguments
        error = capsys.readouterr().err
        assert message in error, (arguments, error)
        assert "Traceback" not in error
        assert not (tmp_path / "runs").exists(), arguments
