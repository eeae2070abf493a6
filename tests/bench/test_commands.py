"""`kaem bench`: the numbers that it promises, and the shape of what it prints."""

import json

import numpy as np
import pytest

from kaem.cli import main
from support.pictures import assert_drawn


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
    assert_drawn(figure, 7.2 if name == "training" else 4.2)
    if name == "training":
        assert result["results"]["speedup_vs_plain"] > 1
    else:
        assert result["results"]["memory_thermo10_gib"] < 2
