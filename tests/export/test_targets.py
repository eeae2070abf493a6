"""One `Target` for all: the library's function, the command line, and targets, generators and bases of one's own."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from kaem import KAEM, KAN, AbstractGenerator, UserError
from kaem.bases import BASES, LinearBasis, Start
from kaem.cli import main
from kaem.export import TARGETS, Target, export, find, quantise
from kaem.runs.folder import RunFolder


class Quantiles(Target):
    """Quantiles of every latent as a table of text, `points` of them."""

    summary = "quantiles as comma-separated values"
    settings: ClassVar[dict] = {"entries": 5}

    def subject(self, model, **settings):
        if len(model.prior.shape) != 2:
            raise UserError(
                "quantiles are written of univariate priors; export a mixture with `--to lut`."
            )
        shares = (np.arange(settings["entries"]) + 0.5) / settings["entries"]
        u = np.broadcast_to(shares[:, None, None], (len(shares), *model.prior.shape))
        return np.asarray(model.prior.inverse_cdf(jnp.asarray(u, jnp.float32))).reshape(len(u), -1)

    def files(self, subject, name="kaem"):
        text = io.StringIO()
        csv.writer(text).writerows(subject.tolist())
        return {f"{name}.csv": text.getvalue().encode()}

    def verify(self, folder, subject, name="kaem"):
        rows = np.loadtxt(folder / f"{name}.csv", np.float32, delimiter=",")
        return {"mismatches": int(np.sum(rows != subject))}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setitem(TARGETS, "csv", Quantiles())


def test_a_target_of_ones_own_is_in_help_and_exports(own, tiny_kan, kan_file, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for name, target in TARGETS.items():
        assert re.search(rf"^  {name} +{re.escape(target.summary)}$", said, re.MULTILINE)
    assert "csv" in said
    command = ["export", str(kan_file), "--to", "csv", "-o", str(tmp_path), "--json"]
    assert main([*command, "--entries", "3", "--verify"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["results"] == {
        "target": "csv",
        "name": "kaem",
        "files": ["kaem.csv"],
        "verification": {"mismatches": 0},
    }
    rows = np.loadtxt(tmp_path / "kaem.csv", delimiter=",")
    prior = tiny_kan[0].prior
    shares = np.asarray(prior.cdf(jnp.asarray(rows.reshape(3, *prior.shape), jnp.float32)))
    np.testing.assert_allclose(shares.reshape(3, -1), np.tile([[1], [3], [5]], 6) / 6, atol=1e-5)
    assert main([*command, "--bits", "8"]) == 2
    said = capsys.readouterr().err
    assert "--bits is for --to lut, c, hls, verilog; --to csv (quantiles as comma-sep" in said


def test_the_parser_knows_targets_only_when_it_is_asked_for_help():
    code = "import sys, kaem.cli; kaem.cli.parser(); print([m for m in ('numpy', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_model_that_a_target_does_not_support_is_refused(own, tiny_cnn, tmp_path, capsys):
    tiny_cnn[0].save(tmp_path / "mixture.safetensors")
    command = ["export", str(tmp_path / "mixture.safetensors"), "-o", str(tmp_path / "out")]
    assert main([*command, "--to", "csv"]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "kaem: quantiles are written of univariate priors; export a mixture with `--to lut`.\n"
    )
    assert not (tmp_path / "out").exists()


def test_unknown_targets_and_settings_name_what_there_is(tiny_kan, tmp_path, capsys):
    with pytest.raises(UserError, match=r"'fortran' \(choose from lut, c, hls, verilog, onnx\)"):
        export(tiny_kan[0], "fortran", tmp_path)
    with pytest.raises(UserError, match="generator is for --to verilog; --to hls"):
        export(tiny_kan[0], "hls", tmp_path, generator=True)
    with pytest.raises(UserError, match="speed is for --to nothing"):
        find("c", ["speed"])
    with pytest.raises(UserError, match="no folder of its own"):
        export(tiny_kan[0], "lut")
    assert main(["export", str(tmp_path / "none"), "--to", "fortran"]) == 2
    assert "choose from lut, c, hls, verilog, onnx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_models_files_and_runs_give_the_same_files(tiny_kan, kan_file, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(kan_file, run)
    seen = []
    for source, folder in ((run, None), (RunFolder(run), None), (kan_file, tmp_path / "file")):
        made = export(source, "lut", folder, entries=64, report=lambda found: seen.append(found))
        assert made == seen[-1]
        place = run / "export" / "lut" if folder is None else folder
        names = ["kaem_tables.npz", "kaem_tables.mem", "kaem_tables.h", "export.json"]
        assert made["files"] == [str(place / name) for name in names]
        assert made["results"]["settings"]["entries"] == 64
        expected = TARGETS["lut"].files(quantise(tiny_kan[0], entries=64, generator=False))
        with np.load(place / "kaem_tables.npz") as file:
            words = file["words"]
        assert words.shape == (6, 65)
        # A file's tables are as fine as they have to be, those of this model as it was made.
        with np.load(io.BytesIO(expected["kaem_tables.npz"])) as file:
            assert np.abs(words - file["words"].astype(int)).max() < 100


@pytest.mark.parametrize("target", TARGETS)
def test_tables_are_made_exact_once_for_each_export(target, tiny_kan, tmp_path, monkeypatch):
    if target == "onnx":
        pytest.importorskip("onnx")
    monkeypatch.setattr("kaem.export.integer.quality.quality", lambda model, q: {})
    model, _ = tiny_kan
    uncached = eqx.tree_at(lambda m: m.prior, model, model.prior.trainable())
    calls, real = [], KAEM.readable
    monkeypatch.setattr(
        KAEM, "readable", lambda self, *given: calls.append(given) or real(self, *given)
    )
    export(uncached, target, tmp_path)
    assert calls == [("export",)]


class Stretch(AbstractGenerator):
    """Two numbers, each a multiple of the sum of a latent."""

    scale: Float[Array, " 2"]
    data_shape: tuple[int, ...] = eqx.field(static=True, default=(2,))

    def __call__(self, z):
        return self.scale * jnp.sum(z)


@pytest.mark.parametrize("target", ["c", "hls", "onnx"])
def test_a_generator_that_no_target_knows_is_refused_by_name(target, tiny_kan, tmp_path):
    if target == "onnx":
        pytest.importorskip("onnx")
    model = KAEM(tiny_kan[0].prior, Stretch(jnp.array([1.0, 2.0])))
    with pytest.raises(UserError, match=r"class Stretch cannot.*classes CNN and KAN can.*--to lut"):
        export(model, target, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert export(model, "lut", tmp_path)["results"]["quality"]["ks_largest"] < 1e-3


class Hats(LinearBasis):
    """Piecewise linear functions on an even grid."""

    grid: Float[Array, "P G"]
    coefficients: Float[Array, "Q P G"]

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        grid = np.tile(np.linspace(*start.interval, start.size + 1), (inputs, 1))
        coefficients = rng.normal(size=(outputs, inputs, start.size + 1))
        return cls(jnp.asarray(grid, jnp.float32), jnp.asarray(coefficients, jnp.float32))

    def features(self, x):
        step = self.grid[:, 1:2] - self.grid[:, :1]
        return jnp.maximum(1 - jnp.abs(x[:, None] - self.grid) / step, 0)


def test_a_new_linear_basis_is_exported_in_integers(tiny_kan, tmp_path, needs, monkeypatch):
    needs("gcc", "g++")
    monkeypatch.setitem(BASES, "hats", Hats)
    generator = KAN(3, (4,), key=jax.random.key(0), basis="hats", depth=1, grid_size=4)
    model = KAEM(tiny_kan[0].prior, generator)
    results = export(model, "c", tmp_path)["results"]
    assert results["files"] == ["kaem.h", "kaem.c", "kaem_example.c"]
    assert results["note"].endswith("there is no C for functions of class Hats.")
    assert results["quality"]["psnr"] > 35
    found = TARGETS["c"].verify(tmp_path, quantise(model), samples=500, images=100)
    wrong = {name: count for name, count in found.items() if "mismatches" in name}
    assert set(wrong.values()) == {0}
    assert not any(name.startswith("float") for name in found)
    pytest.importorskip("onnx")
    with pytest.raises(UserError, match="Hats functions cannot be written as an ONNX graph"):
        export(model, "onnx", tmp_path / "onnx")
