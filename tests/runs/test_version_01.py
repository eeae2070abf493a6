"""Run folders and model files of version 0.1: they open, and make what they made."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import kaem
from kaem.cache import machine
from kaem.cli import main
from kaem.runs import RunFolder

FILES = Path(__file__).parents[1] / "fixtures" / "v01"
SAMPLES = np.load(FILES / "samples.npz")


def check(x, name):
    """The same bits where the same processor and compiler made them, and nearly those elsewhere.

    They were made by version 0.1 itself, compiled as `conftest.py` says.
    """
    expected = SAMPLES[name]
    np.testing.assert_allclose(x, expected, atol=1e-5)
    same = str(SAMPLES["machine"]) == f"{machine()} {jax.__version__}"
    quick = os.environ.get("XLA_FLAGS") == "--xla_cpu_use_fusion_emitters=false"
    if same and quick and os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1":
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("name", "kind"), [("run", "KAEM"), ("mixture", "KAEM"), ("vae", "VAE"), ("ddpm", "DDPM")]
)
def test_models_draw_what_they_drew(name, kind):
    model = kaem.load(FILES / ("run" if name == "run" else f"{name}.safetensors"))
    assert type(model).__name__ == kind
    check(model.sample(jax.random.key(3), 4), name)


def test_a_run_folder_opens():
    run = RunFolder.open(FILES / "run")
    settings = run.settings()
    assert settings.kinds == {
        "model": "kaem",
        "prior": "univariate",
        "generator": "kan",
        "learner": "importance",
        "encoder": "none",
        "lens": "none",
    }
    assert settings.learner() == kaem.ImportanceSampling(16, 0.5, "none")
    assert settings.arguments["model"]["noise"] == 0.3
    assert run.step() == 20
    assert [record["step"] for record in run.history()] == [5, 10, 15, 20]
    assert run.data(str(FILES / "examples.npy")).shape == (64, 8, 8, 1)
    check(run.model().sample(jax.random.key(3), 4), "run")


def test_commands_take_such_a_run(tmp_path, capsys):
    run, out = str(FILES / "run"), str(tmp_path / "x.npz")
    assert main(["sample", run, "-n", "4", "--seed", "3", "-o", out]) == 0
    check(np.load(out)["x"], "command")
    capsys.readouterr()
    assert main(["info", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["progress"] == "step 20 of 20"
    assert found["checkpoints"] == [20]
    assert found["versions"]["kaem"] == "0.1.0"


@pytest.mark.parametrize("what", ["svhn-thermo", "svhn-fast"])
def test_a_run_of_a_preset_that_is_no_more_goes_on(what, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(FILES / "run", copy)
    record = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(record | {"what": what}))
    options = ["--out", str(copy), "--resume", "--data", str(FILES / "examples.npy")]
    assert main(["train", what, *options, "--steps", "25", "--no-report"]) == 0
    run = RunFolder.open(copy)
    assert run.step() == 25
    assert run.record()["what"] == what
    assert main(["train", "svhn-paper", *options]) == 2
    assert f"continue it with `kaem train {what}" in capsys.readouterr().err


def test_such_a_run_goes_on(tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(FILES / "run", copy)
    command = ["train", "quickstart", "--out", str(copy), "--resume", "--no-report"]
    assert main([*command, "--data", str(FILES / "examples.npy"), "--steps", "30"]) == 0
    run = RunFolder.open(copy)
    assert [record["step"] for record in run.history()] == [5, 10, 15, 20, 25, 30]
    assert run.settings().training.steps == 30
    assert "posterior" not in run.record()["settings"]  # it is one of today's now
    assert run.history()[-1]["loss"] < run.history()[0]["loss"]
