"""`kaem train` of photographs: bad input the way a user meets it, and small runs."""

import importlib
import json

import numpy as np
import pytest
from PIL import Image

from kaem import load
from kaem.cli import main
from kaem.runs.folder import RunFolder
from kaem.settings import merge
from kaem.training.loop import Boundary
from support.chains import SMALL, THERMO, coloured
from support.commands import kaem


def folder(path, images):
    path.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(path / f"{i:03d}.png")
    return str(path)


def refused(capsys, *arguments):
    assert main(["train", *arguments]) == 2
    return capsys.readouterr().err


def test_photographs_of_any_size_train_an_rgb_preset(tmp_path, capsys, monkeypatch):
    """The README's line: the preset knows the size."""
    rng = np.random.default_rng(0)
    sizes = [rng.integers(0, 256, (50, s, 3), dtype=np.uint8) for s in [40] * 48 + [64] * 12]
    photos = folder(tmp_path / "photos", sizes)
    # Compiling is not what is tested.
    module = importlib.import_module("kaem.runs.planning")
    monkeypatch.setattr(module, "updates", lambda state, x, plan: iter([Boundary(state, {})] * 2))
    assert main(["train", "svhn-paper", "--data", photos, "--dry-run", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["data"]["shape"] == [60, 32, 32, 3]
    assert "note: 12 of 60 images" in shown.err
    assert "resized to 32 x 32" in shown.err


def test_bad_data_for_an_rgb_preset(tmp_path, capsys):
    rng = np.random.default_rng(0)
    grey = folder(tmp_path / "grey", rng.integers(0, 256, (60, 32, 32), dtype=np.uint8))
    message = refused(capsys, "svhn-paper", "--data", grey, "--out", str(tmp_path / "r"))
    assert "grey" in message
    assert "data.channels=1" in message
    few = folder(tmp_path / "few", rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8))
    message = refused(capsys, "svhn-paper", "--data", few, "--out", str(tmp_path / "r"))
    assert "10 of the 50 examples" in message
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["learner.temperatures=0"], "at least one power posterior"),
        (["learner.schedule=fixed", "learner.temperatures=2", "learner.ladder=[0,1,0.5]"],
         "increase strictly from 0 to 1"),
        (["learner.kind=importance", "learner.temperatures=3"],
         "there is no setting learner.temperatures"),
        (["learner.schedule=steep"], "schedule"),
        (["generator.widths=[8,8,8,8,8,8]"], "divisible by"),
        (["learner.kind=importance", "learner.negative_phase=sampled"], "exact negative phase"),
    ],
)  # fmt: skip
def test_bad_settings_for_a_thermodynamic_run(tmp_path, capsys, settings, message):
    data = tmp_path / "x.npy"
    np.save(data, np.zeros((60, 32, 32, 3), np.uint8))
    options = [part for s in settings for part in ("--set", s)]
    arguments = ["svhn-paper-thermo", "--data", str(data), "--out", str(tmp_path / "r"), *options]
    assert message in refused(capsys, *arguments)
    assert not (tmp_path / "r").exists()


def train_blobs(tmp_path, *options):
    """Train a small thermodynamic run of coloured blobs, and return its folder."""
    data, out, config = tmp_path / "blobs.npy", tmp_path / "run", tmp_path / "c.json"
    np.save(data, coloured())
    config.write_text(json.dumps({"settings": merge(SMALL, {"learner": THERMO})}))
    settings = ["--config", config, "--set", "data.size=8", "--set", "training.steps=8", *options]
    kaem("train", "svhn-paper-thermo", "--data", data, "--out", out, *settings)
    return out


@pytest.mark.slow
def test_train_and_sample_an_rgb_run(tmp_path, capsys):
    out = train_blobs(tmp_path, "--json", "--no-report")
    result = json.loads(capsys.readouterr().out)
    assert 0 <= result["metrics"]["swap_0"] <= 1
    assert main(["sample", str(out), "-n", "5", "-o", str(tmp_path / "s.npz"), "--json"]) == 0
    assert np.load(tmp_path / "s.npz")["x"].shape == (5, 8, 8, 3)
    run = RunFolder.open(out)
    said = dict([*load(out).facts(), *run.settings().learner().facts(run.history()[-1])])
    assert said["prior"].startswith("7 mixtures of 3")
    assert "3 power posteriors" in said["posterior"]


@pytest.mark.slow
def test_the_report_of_an_rgb_run(tmp_path):
    out = train_blobs(tmp_path)
    drawn = {path.stem for path in (out / "figures").iterdir()}
    assert {"densities", "traversal", "interpolation", "temperatures", "reconstructions"} <= drawn
