"""`kaem sample`: reproducible draws, with noise and without, in files of a sensible size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from kaem.baselines import DDPM
from kaem.cli import main
from kaem.runs.folder import RunFolder
from support.commands import kaem


def test_compiled_programs_are_kept_between_runs(trained, tmp_path):
    """In the user's cache, one folder for each kind of processor; not if they are told not to."""
    command = [sys.executable, "-m", "kaem", "sample", str(trained), "-n", "2", "-o", "out.npz"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMP", "JAX_PERS"))}
    clean["XDG_CACHE_HOME"] = str(tmp_path / "mine")
    # All programs, also those that a busy machine takes long for only at times.
    clean["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    subprocess.run(command, check=True, env=clean | {"KAEM_COMPILATION_CACHE": "off"})
    folder = tmp_path / "mine" / "kaem" / "compiled"
    assert not folder.exists()
    found = []
    for _ in range(2):
        subprocess.run(command, check=True, env=clean)
        found.append({p.name for p in folder.rglob("*-cache")})
    assert found[0]
    assert found[0] == found[1]


def test_tables_are_refined_when_saving_and_not_when_loading(trained, monkeypatch):
    from kaem import load
    from kaem.loading import read
    from kaem.priors import AbstractPrior

    expected = read(trained).prior.refined().cells
    monkeypatch.setattr(AbstractPrior, "refined", lambda *_: pytest.fail("refined at loading"))
    assert load(trained).prior.cells == expected


def test_sampling_is_reproducible(trained, tmp_path, capsys):
    for name in ("a.npz", "b.npz"):
        kaem("sample", trained, "-n", 7, "--seed", 3, "-o", tmp_path / name, "--json")
    shown = json.loads(capsys.readouterr().out.split("}\n")[0] + "}")
    assert shown["shape"] == [7, 28, 28, 1]
    a, b = (np.load(tmp_path / n)["x"] for n in ("a.npz", "b.npz"))
    np.testing.assert_array_equal(a, b)
    assert 0 <= a.min() < a.max() <= 1
    kaem("sample", trained / "model.safetensors", "-n", 4, "-o", tmp_path / "s.png")
    with Image.open(tmp_path / "s.png") as image:
        assert image.size[0] == image.size[1]


def test_noise_makes_draws_of_p_of_x_of_means(trained, tmp_path, capsys):
    """The same seed has the same means; what is added is normal, and its scale the run's."""
    arguments = ["sample", str(trained), "-n", "40", "--seed", "3", "--json", "-o"]
    assert main([*arguments, "means.npz"]) == 0
    assert main([*arguments, "draws.npz", "--noise"]) == 0
    assert "outside [0, 1] with noise, and are left as they are" in capsys.readouterr().err
    means, draws = (np.load(f"{name}.npz")["x"] for name in ("means", "draws"))
    sigma = RunFolder(trained).settings().arguments["model"]["noise"]
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
