"""Benchmarks as a registry, and exactness for a basis that nobody has written a formula for."""

import json
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import kaem.bench
from kaem.bases import BASES, Wavelet
from kaem.bench import BENCHMARKS, Benchmark, exactness, oracle
from kaem.cli import main


class GaussianSlope(Wavelet):
    """An odd bump, as CONTRIBUTING.md adds it."""

    def mother(self, x):
        x = self.tau * x
        return -x * jnp.exp(-0.5 * x**2)


@pytest.fixture
def slope(monkeypatch):
    monkeypatch.setitem(BASES, "gaussian-slope", GaussianSlope)


def test_a_basis_without_a_formula_is_measured_against_its_own_function(slope):
    """Of which the oracle makes the same integrals as SciPy does of the formula."""
    prior = exactness.case("gaussian-slope", 2.0, (-4.0, 4.0), 2)
    width = float(np.hypot(prior.energies.basis.raw_width[0, 0], 0.05))

    def log_density(z):
        x = 5 * (z - np.float32(0.3)) / width
        return -2 * x * np.exp(-(x**2) / 2) - z**2 / 2 - np.log(2 * np.pi) / 2

    z = np.linspace(-4, 4, 33)
    np.testing.assert_allclose(oracle.log_density(prior)(z), log_density(z), rtol=1e-6)
    mass, _ = integrate.quad(lambda z: np.exp(log_density(z)), -4, 4, points=[0.3], epsabs=1e-12)
    found = exactness.measure(prior)
    assert found["log_z"] == pytest.approx(np.log(mass), abs=1e-7)
    assert found["error"] < 5e-6
    assert not found["independent"]


def test_exactness_takes_a_new_basis_and_says_what_it_was_compared_with(slope, capsys, monkeypatch):
    """From the command line; what other cases say is another test's."""
    monkeypatch.setattr(exactness, "BASES", {n: BASES[n] for n in ("morlet", "gaussian-slope")})
    monkeypatch.setattr(exactness, "REFERENCES", {"gaussian": None})
    learned = exactness.case("morlet", 0.5, (-4.0, 4.0), 1)
    monkeypatch.setattr(exactness, "trained", lambda path: learned)
    monkeypatch.setattr(exactness, "ks_test", lambda prior: 0.5)
    assert main(["bench", "exactness", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    shown = kaem.bench.render(printed)
    assert "| mild gaussian-slope * |" in shown
    assert "| mild morlet |" in shown
    assert "its own function in double precision" in shown
    for group in ("mild", "sharp"):
        found = printed["details"][group]["gaussian-slope"]
        assert found["error"] < 1e-5
        assert found["log_z_error"] < 1e-6


def test_a_benchmark_is_one_module_and_one_entry(capsys, monkeypatch):
    module = types.ModuleType("dice")
    module.run = lambda sides=6: {"benchmark": "dice", "results": {"mean": (sides + 1) / 2}}
    module.render = lambda result: f"mean {result['results']['mean']}"
    monkeypatch.setitem(sys.modules, "dice", module)
    options = {"sides": {"type": int, "default": 6}}
    monkeypatch.setitem(BENCHMARKS, "dice", Benchmark("dice", "how dice fall", options))
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    listed = " ".join(capsys.readouterr().out.split())
    for name, benchmark in BENCHMARKS.items():
        assert f"{name} {benchmark.summary}" in listed
    assert main(["bench", "dice", "--sides", "20"]) == 0
    assert capsys.readouterr().out == "mean 10.5\n"
    assert kaem.bench.bench("dice")["results"] == {"mean": 3.5}
    with pytest.raises(kaem.UserError, match="choose one of exactness"):
        kaem.bench.bench("cards")
