"""The command line as a user meets it: results, messages, exit codes, and what is left on disk."""

import errno
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from kaem import DDPM
from kaem.cli import main
from kaem.training.run import Run

SETTINGS = [
    a
    for s in (
        "data.limit=300",
        "prior.latents=1",
        "posterior.samples=32",
        "training.batch_size=32",
        "training.log_every=5",
        "training.checkpoint_every=10",
        "training.sample_every=10",
        "generator.depth=1",
        "prior.grid_size=5",
        "generator.grid_size=5",
    )
    for a in ("--set", s)
]
SETTINGS.append("--no-report")  # which tests/test_report.py looks at


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "small"
    assert (
        main(["train", "quickstart", "--steps", "20", "--out", str(out), "--json", *SETTINGS]) == 0
    )
    return out


def test_help_needs_no_jax_and_is_instant():
    code = "import sys; from kaem.cli import parser; parser().format_help(); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_train_leaves_the_run_folder_of_the_design(trained):
    for name in (
        "config.json",
        "model.safetensors",
        "history.jsonl",
        "checkpoints/00000020/state.safetensors",
        "samples/00000010.png",
        "samples/00000020.png",
    ):
        assert (trained / name).is_file(), name
    record = json.loads((trained / "config.json").read_text())
    assert record["settings"]["prior"]["latents"] == 1
    assert record["data"]["shape"] == [300, 28, 28, 1]
    assert [r["step"] for r in Run(trained).history()] == [
        5,
        10,
        15,
        20,
    ]


def test_an_existing_run_is_refused_and_untouched(trained, capsys):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    assert main(["train", "quickstart", "--out", str(trained)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "quickstart", "--out", ""], "out is empty"),
        (["sample", "", "-n", "1"], "run is empty"),
        (["train", "quickstart", "--set", "training.noise=nan"], "finite number"),
        (["train", "quickstart", "--set", "optimiser.prior_rate=inf"], "finite number"),
    ],
)
def test_nothing_and_no_number_are_refused(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_model_is_never_overwritten_by_going_backwards(trained, tmp_path, capsys):
    """Without its checkpoints a run cannot go on; with an older one it can, and keeps its model."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "checkpoints")
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    resume = ["train", "quickstart", "--out", str(copy), "--resume", "--no-report"]
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
    assert Run(copy).step() == 25


def test_compiled_programs_are_kept_between_runs(trained, tmp_path):
    """In the user's cache, one folder for each kind of processor; not if they are told not to."""
    kaem = [sys.executable, "-m", "kaem", "sample", str(trained), "-n", "2", "-o", "out.npz"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMP", "JAX_PERS"))}
    clean["XDG_CACHE_HOME"] = str(tmp_path / "mine")
    subprocess.run(kaem, check=True, env=clean | {"KAEM_COMPILATION_CACHE": "off"})
    folder = tmp_path / "mine" / "kaem" / "compiled"
    assert not folder.exists()
    found = []
    for _ in range(2):
        subprocess.run(kaem, check=True, env=clean)
        found.append({p.name for p in folder.rglob("*-cache")})
    assert found[0]
    assert found[0] == found[1]


def test_tables_are_refined_when_saving_and_not_when_loading(trained, monkeypatch):
    from kaem import load
    from kaem.priors import AbstractPrior
    from kaem.serialisation import read

    expected = read(trained).prior.refined().cells
    monkeypatch.setattr(AbstractPrior, "refined", lambda *_: pytest.fail("refined at loading"))
    assert load(trained).prior.cells == expected


def test_resume_extends_a_run(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    assert (
        main(
            ["train", "quickstart", "--out", str(copy), "--resume", "--steps", "30", "--no-report"]
        )
        == 0
    )
    assert Run(copy).history()[-1]["step"] == 30
    assert Run(copy).config().training.steps == 30
    assert main(["train", "mnist", "--out", str(copy), "--resume"]) == 2
    assert "is a run of 'quickstart'" in capsys.readouterr().err
    assert (
        main(["train", "quickstart", "--out", str(copy), "--resume", "--set", "training.noise=1"])
        == 2
    )
    assert main(["train", "quickstart", "--out", str(copy), "--resume", "--steps", "10"]) == 2


def test_sampling_is_reproducible(trained, tmp_path, capsys):
    for name in ("a.npz", "b.npz"):
        assert (
            main(
                [
                    "sample",
                    str(trained),
                    "-n",
                    "7",
                    "--seed",
                    "3",
                    "-o",
                    str(tmp_path / name),
                    "--json",
                ]
            )
            == 0
        )
    shown = json.loads(capsys.readouterr().out.split("}\n")[0] + "}")
    assert shown["shape"] == [7, 28, 28, 1]
    a, b = (np.load(tmp_path / n)["x"] for n in ("a.npz", "b.npz"))
    np.testing.assert_array_equal(a, b)
    assert 0 <= a.min() < a.max() <= 1
    assert (
        main(
            ["sample", str(trained / "model.safetensors"), "-n", "4", "-o", str(tmp_path / "s.png")]
        )
        == 0
    )
    with Image.open(tmp_path / "s.png") as image:
        assert image.size[0] == image.size[1]


def test_noise_makes_draws_of_p_of_x_of_means(trained, tmp_path, capsys):
    """The same seed has the same means; what is added is normal, and its scale the run's."""
    arguments = ["sample", str(trained), "-n", "40", "--seed", "3", "--json", "-o"]
    assert main([*arguments, "means.npz"]) == 0
    assert main([*arguments, "draws.npz", "--noise"]) == 0
    assert "outside [0, 1] with noise, and are left as they are" in capsys.readouterr().err
    means, draws = (np.load(f"{name}.npz")["x"] for name in ("means", "draws"))
    sigma = Run(trained).config().training.noise
    assert stats.kstest((draws - means).ravel() / sigma, "norm").pvalue > 1e-4  # or a false alarm
    assert draws.min() < 0 < 1 < draws.max()
    assert main(["sample", str(trained), "-n", "4", "-o", "draws.png", "--noise"]) == 0
    assert "clipped in the sheet" in capsys.readouterr().err


def test_a_model_without_observation_noise_adds_none(tmp_path, capsys):
    model = DDPM((4, 4, 1), key=jax.random.key(0), channels=(8, 8), time_dim=8, timesteps=10)
    model.save(tmp_path / "ddpm.safetensors")
    assert main(["sample", str(tmp_path / "ddpm.safetensors"), "--noise"]) == 2
    assert "leave --noise out" in capsys.readouterr().err


def test_more_samples_than_memory_are_refused(trained, capsys):
    assert main(["sample", str(trained), "-n", "100000000", "-o", "x.npz"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_sheets_that_nobody_could_look_at_are_refused(trained, capsys, monkeypatch):
    arguments = ["sample", str(trained), "-o", "big.png", "-n"]
    assert main([*arguments, "100000"]) == 2
    message = capsys.readouterr().err
    assert "at most 27556" in message  # 166 x 166 of 30 x 30 pixels: 24.8 million
    assert "FILE.npz" in message
    assert not Path("big.png").exists()
    monkeypatch.setattr("kaem.data.sheets.MAX_PIXELS", 4 * 30 * 30)
    assert main([*arguments, "5"]) == 2
    assert main([*arguments, "4"]) == 0


def test_info_names_the_model(trained, tmp_path, capsys):
    assert main(["info", str(trained)]) == 0
    size = (trained / "model.safetensors").stat().st_size
    expected = rf"model +{trained}/model\.safetensors, {size / 1e6:.1f} MB\n"
    assert re.search(expected, capsys.readouterr().out)
    shutil.copy(trained / "config.json", tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    assert re.search(r"model +none yet\n", capsys.readouterr().out)


def test_data_check_takes_the_settings_that_it_advises(tmp_path, capsys):
    for i, size in enumerate((5, 6)):
        Image.new("RGB", (size, size)).save(tmp_path / f"{i}.png")
    assert main(["data", "check", str(tmp_path)]) == 2
    advised = re.search(r"`(--set [^`]+)`", capsys.readouterr().out)[1].replace("=N", "=4")
    assert main(["data", "check", str(tmp_path), *advised.split()]) == 0
    shown = capsys.readouterr()
    assert "2 examples of shape (4, 4, 3)" in shown.out
    assert "note: 1 of 2 images" in shown.err
    more = ["--set", "data.limit=1", "--set", "data.channels=3"]
    assert main(["data", "check", str(tmp_path), *more]) == 0
    assert "1 examples of shape (5, 5, 3)" in capsys.readouterr().out
    for wrong in ("training.steps=3", "data.name=mnist5k", "data=3", "data.sise=3"):
        assert main(["data", "check", str(tmp_path), "--set", wrong]) == 2
        assert "kaem: " in capsys.readouterr().err


def test_info(trained, capsys):
    assert main(["info", "--json"]) == 0
    assert "jax" in json.loads(capsys.readouterr().out)["versions"]
    assert main(["info", str(trained), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["progress"] == "step 20 of 20"
    assert info["checkpoints"] == [10, 20]
    assert main(["info", "nowhere"]) == 2


def test_data(capsys, tmp_path):
    assert main(["data", "list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["mnist5k"]["status"] == "embedded"
    assert listing["mnist"]["status"] == "absent"
    assert main(["data", "check", "mnist5k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mnist5k"]["status"] == "good"
    assert main(["data", "check", "mnist", "mnist5k", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["mnist"]["status"], found["mnist5k"]["status"]) == ("bad", "good")
    assert main(["data", "fetch", "mnits"]) == 2
    assert "known: mnist5k" in capsys.readouterr().err


def test_dry_run_writes_nothing(tmp_path, capsys):
    out = tmp_path / "dry"
    assert main(["train", "quickstart", "--dry-run", "--json", "--out", str(out), *SETTINGS]) == 0
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


def bad_inputs(tmp_path):
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
        ("train", "quickstart", "--config", str(tmp_path / "bad.toml")): "cannot be read",
        ("train", "quickstart", "--config", str(tmp_path / "absent.toml")): "cannot be read",
        ("train", "quickstart", "--config", str(tmp_path / "deep.toml")): "cannot be read",
        ("train", "quickstart", "--config", str(tmp_path / "deep.json")): "cannot be read",
        ("train", "quickstart", "--config", str(tmp_path / "list.json")): "a JSON object",
        ("train", "quickstart", "--set", "prior.domain=" + "[" * 10_000): "prior.domain must be",
        ("train", "quickstart", "--set", "prior.basis=bessel"): "unknown basis",
        ("train", "quickstart", "--set", "posterior.resampler=no"): "unknown resampler",
        ("train", "quickstart", "--steps", "ten"): "invalid int value",
        ("train", "quickstart", "--steps", "-5"): "positive",
        ("train", "mnist"): "kaem data fetch mnist",
        ("train", "quickstart", "--resume"): "not a run folder",
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


def test_wrong_shape_for_a_run_is_refused(trained, capsys, tmp_path):
    np.save(tmp_path / "other.npy", np.zeros((300, 4, 4, 1), np.uint8))
    args = [
        "train",
        "quickstart",
        "--out",
        str(trained),
        "--resume",
        "--data",
        str(tmp_path / "other.npy"),
    ]
    assert main([*args, "--steps", "30"]) == 2
    assert "data differs" in capsys.readouterr().err


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch, capsys):
    out = tmp_path / "full"
    real, calls = os.fsync, []

    def sometimes_full(descriptor):
        calls.append(descriptor)
        # The first writes are config.json, samples, checkpoint and model of step 10.
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sometimes_full)
    assert main(["train", "quickstart", "--steps", "30", "--out", str(out), *SETTINGS]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "Traceback" not in message
    monkeypatch.setattr(os, "fsync", real)
    assert not [p for p in out.rglob("*") if ".tmp" in p.name]
    assert main(["train", "quickstart", "--out", str(out), "--resume", "--no-report"]) == 0
    assert Run(out).history()[-1]["step"] == 30


def test_a_terminal_gets_a_progress_bar(tmp_path):
    """On a real pseudo-terminal."""
    leader, follower = pty.openpty()
    args = [
        sys.executable,
        "-m",
        "kaem",
        "train",
        "quickstart",
        "--steps",
        "10",
        "--out",
        str(tmp_path / "r"),
        *SETTINGS,
    ]
    process = subprocess.Popen(
        args, stdout=follower, stderr=follower, env=os.environ | {"COLUMNS": "150", "TERM": "xterm"}
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait() == 0
    assert b"10/10" in shown
    assert "━".encode() in shown


@pytest.mark.slow
def test_exactness_benchmark_meets_its_numbers(capsys):
    assert main(["bench", "exactness", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["worst_reference"] <= 1e-6
    assert results["worst_mild"] <= 1e-6
    assert results["worst_sharp_morlet"] <= 1e-5
    assert 0.1 < results["paper_sharp_morlet"] < 0.3
    assert 0.03 < results["paper_gaussian"] < 0.05
    assert results["worst_log_z"] <= 1e-6
    assert results["ks_p_value"] > 1e-3


@pytest.mark.slow
def test_importance_benchmark_has_its_shape(capsys):
    assert main(["bench", "importance", "--repeats", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["results"]["importance_over_autoencoder"] > 0
    assert len(result["details"]["importance"]["times"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "temperatures"])
def test_langevin_benchmarks_have_their_shape(capsys, tmp_path, name):
    figure = tmp_path / "f.png"
    assert main(["bench", name, "--repeats", "1", "--figure", str(figure), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert all(np.isfinite(value) for value in result["results"].values())
    assert result["results"]["thermo10_over_single"] > 1
    assert all(len(entry["times"]) == 1 for entry in result["details"].values())
    assert figure.stat().st_size > 5000
    if name == "training":
        assert result["results"]["speedup_vs_plain"] > 1
        assert 0 < result["results"]["fast_over_paper"] < 1
    else:
        assert result["results"]["memory_thermo10_gib"] < 2
