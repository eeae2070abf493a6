"""What verbs write: where they are told to, over nothing of a run's own, and only of what is there now."""

import json
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem as package
from kaem.cli import main
from kaem.interpret import report as writing
from kaem.interpret.figures import FIGURES
from kaem.loading import read_config
from support.commands import kaem
from support.registries import leave_only


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run that may be written into."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def _quick_reports(monkeypatch):
    """Reports of one figure, which is drawn at once."""
    leave_only(monkeypatch, FIGURES, "training")
    monkeypatch.setattr(writing, "fit_places", lambda *_: [])


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("_quick_reports")
def test_no_verb_overwrites_what_it_does_not_make(run, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(9, 3)))
    (tmp_path / "mine.json").write_text("precious")
    (tmp_path / "mine.png").write_text("precious")
    sets = ["evaluate", tmp_path / "a.npy", tmp_path / "a.npy"]
    verbs = {"report": ["report", run], "compare": ["compare", run, run], "evaluate": sets}
    verbs["sample"] = ["sample", run, "-n", 2]
    before = content(tmp_path)
    for command, output, message in (
        ("report", run / "model.safetensors", "takes a .html file"),
        ("report", run / "config.json", "takes a .html file"),
        ("report", tmp_path / "mine.json", "takes a .html file"),
        ("compare", run / "model.safetensors", "takes a .html file"),
        ("compare", run / "config.html", "belongs to the run"),
        ("compare", tmp_path / "mine.html", "is there already"),
        ("evaluate", run / "model.safetensors", "takes a .json file"),
        ("evaluate", run / "config.json", "belongs to the run"),
        ("evaluate", run / "figures" / ".." / "metrics.json", "belongs to the run"),
        ("sample", run / "samples" / "00000010.png", "belongs to the run"),
        ("sample", run / "model.safetensors", "takes a .png or .npz file"),
    ):
        (run / "figures").mkdir(exist_ok=True)
        kaem(*verbs[command], "-o", output, code=2)
        assert message in capsys.readouterr().err, (command, output)
        assert content(tmp_path) == before, (command, output)
    for _ in range(2):  # what a verb has made it may make again
        kaem("report", run, "-o", tmp_path / "page.html")
        kaem(*verbs["sample"], "-o", run / "x.npz")


@pytest.mark.usefixtures("_quick_reports")
def test_metrics_of_another_model_are_left_out(run, tmp_path, capsys):
    old = {"value": 123.0, "model_sha256": "of another model"}
    metrics = {"results": {"fid": 123.0, "proxy": 321.0}, "details": {"fid": old}}
    metrics["details"]["proxy"] = {"value": 321.0, "model_sha256": package.files.sha256(run / "model.safetensors")}  # fmt: skip
    (run / "metrics.json").write_text(json.dumps(metrics))
    kaem("report", run)
    assert "fid of" in capsys.readouterr().err
    page = (run / "report.html").read_text()
    assert "measured of another model" in page
    assert "321" in page
    assert "123" not in page.partition("<h2>Measured</h2>")[2].partition("To repeat it")[0]
    shutil.copytree(run, tmp_path / "other")
    kaem("compare", run, tmp_path / "other", "--repeats", 1, "--json")
    shown = capsys.readouterr()
    assert "fid of" in shown.err
    for entry in json.loads(shown.out)["runs"].values():
        assert entry["metrics"]["results"] == {"proxy": 321.0}
        assert list(entry["metrics"]["details"]) == ["proxy"]


def test_samples_that_are_no_numbers_are_neither_measured_nor_drawn(run, capsys):
    """Of weights that are finite, and overflow."""
    model = package.load(run).trainable()

    def weights(model):
        (layer,) = model.generator.layers
        return layer.basis.coefficients, layer.base_weight

    huge = [jnp.full_like(w, v) for w, v in zip(weights(model), (3e38, -3e38), strict=True)]
    file = run / "model.safetensors"
    package.serialisation.save(eqx.tree_at(weights, model, huge), file, read_config(file))
    assert not np.isfinite(package.load(run).sample(jax.random.key(0), 4)).all()
    for arguments in (
        ["evaluate", run, "--samples", 50],
        ["plot", run, "samples"],
        ["plot", run, "traversal"],
        ["sample", run, "-n", 20],
        ["compare", run, run, "--repeats", 1],
    ):
        assert main([str(argument) for argument in arguments]) == 2, arguments
        assert "is not finite" in capsys.readouterr().err, arguments
    assert not (run / "metrics.json").exists()
