"""Where samples are lost: laws of latents that are what they say, and distances in their order."""

import json

import jax
import numpy as np
import pytest

import kaem
from kaem.cli import main
from kaem.metrics.gap import laws
from kaem.runs import RunFolder
from kaem.settings import merge
from support.chains import coloured
from support.encoders import ENCODED

Q = 3


@pytest.fixture(scope="module")
def model():
    a, b = jax.random.split(jax.random.key(0))
    prior = kaem.MixturePrior(1, Q, key=a, basis="bspline", domain=(-6.0, 6.0), cells=64)
    return kaem.KAEM(prior, kaem.CNN(Q, (8, 8, 3), key=b, widths=(4,)), noise=0.2)


def test_every_law_keeps_what_it_should_of_the_latents(model):
    rng = np.random.default_rng(0)
    mixing = np.array([[1.0, 0.8, 0.0], [0.0, 1.0, 0.5], [0.3, 0.0, 1.0]])
    latents = (rng.laplace(size=(4000, Q)) @ mixing.T + 1).astype(np.float32)
    found = laws(model, latents, seed=1)
    own = np.cov(latents.T)
    assert np.array_equal(found["posterior"], latents)
    # Marginals keep every number, and no correlation: 4 standard errors of 1/sqrt(4000).
    assert np.array_equal(np.sort(found["marginals"], axis=0), np.sort(latents, axis=0))
    off = np.corrcoef(found["marginals"].T)[~np.eye(Q, dtype=bool)]
    assert np.abs(off).max() < 4 / 4000**0.5
    for name in ("gaussian", "aligned"):
        np.testing.assert_allclose(np.cov(found[name].T), own, atol=0.3)

    # Shuffled along independent axes, shapes survive; a normal has none.
    def tails(z):
        sources = np.linalg.solve(mixing, (z - 1).T)
        return np.mean(sources**4) / np.mean(sources**2) ** 2

    assert abs(tails(found["gaussian"]) - 3) < 0.3
    assert tails(found["aligned"]) > 5
    cdf = np.asarray(model.prior.cdf(found["prior"]))
    assert abs(cdf.mean() - 0.5) < 4 / np.sqrt(12 * cdf.size)


def test_the_verb_measures_a_run_with_an_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KAEM_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "x.npy", coloured())
    training = {
        "steps": 4,
        "batch_size": 16,
        "log_every": 4,
        "checkpoint_every": 4,
        "sample_every": 4,
    }
    changes = merge(
        ENCODED, {"training": training, "data": {"limit": None, "size": 8, "channels": 3}}
    )
    run = tmp_path / "run"
    kaem.train("svhn", run, data=tmp_path / "x.npy", set=changes)
    assert (
        main(["evaluate", str(run), "--gap", "--json", "--weights", str(tmp_path / "none.pt")]) == 2
    )
    capsys.readouterr()
    monkeypatch.setattr("kaem.metrics.gap._features", lambda source, reference: (_flat, {}))
    assert main(["evaluate", str(run), "--gap", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    names = ("prior", "marginals", "gaussian", "aligned", "posterior", "data")
    assert set(found) == {f"gap_{name}" for name in names}
    assert found["gap_data"] < found["gap_prior"]
    assert (run / "figures" / "gap.png").stat().st_size > 5000


def _flat(x):
    pixels = np.asarray(x, float).reshape(len(x), -1) / 255
    return pixels @ np.random.default_rng(0).normal(size=(pixels.shape[1], 5))


def test_an_aligned_run_is_a_run(tmp_path, capsys):
    np.save(tmp_path / "x.npy", coloured(512))
    training = {
        "steps": 60,
        "batch_size": 16,
        "log_every": 60,
        "checkpoint_every": 60,
        "sample_every": 60,
    }
    changes = merge(
        ENCODED, {"training": training, "data": {"limit": None, "size": 8, "channels": 3}}
    )
    old, new = tmp_path / "run", tmp_path / "aligned"
    apart = {"upkeep": {"alignments": 0}, "model": {"noise": 0.05}}  # posteriors leave the prior
    kaem.train("svhn", old, data=tmp_path / "x.npy", set=merge(changes, apart))
    assert main(["align", str(old), "--out", str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["log_prior_after"] > found["log_prior_before"]
    model = RunFolder.open(new).model()
    x = coloured()[:10]
    before = RunFolder.open(old).model()
    np.testing.assert_allclose(model.reconstruct(x), before.reconstruct(x), atol=5e-3)
    for command in (
        ["sample", str(new), "-n", "4", "-o", str(tmp_path / "s.png")],
        ["info", str(new)],
    ):
        assert main(command) == 0
    assert main(["export", str(new), "--to", "c", "-o", str(tmp_path / "c"), "--verify"]) == 0
    assert main(["align", str(old), "--out", str(new)]) == 2  # never over another run
    assert "already exists" in capsys.readouterr().err
    assert main(["align", str(old), "--out", str(tmp_path / "few"), "--examples", "3"]) == 2
    assert not (tmp_path / "few").exists()
