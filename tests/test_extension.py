"""One file and one line: a small thing of every kind, defined here, works wherever its kind is named.

Each is registered by one line, then walked through settings, training, files, figures, the report and
exports by the command line, as a user would.
"""

import json
import sys
import types
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import kaem
from kaem import cli
from kaem.bases import BASES, Wavelet
from kaem.data import DATASETS
from kaem.export import TARGETS
from kaem.export.target import Target
from kaem.generators import GENERATORS
from kaem.interpret.figures import FIGURES, Figure
from kaem.interpret.figures.training import training_curves
from kaem.interpret.influence import influence
from kaem.learning import LEARNERS, AbstractLearner
from kaem.metrics import METRICS, Metric
from kaem.models import MODELS
from kaem.posterior import SAMPLERS, ULA
from kaem.priors import PRIORS, REFERENCES, Reference
from kaem.settings import PRESETS

TINY = {
    "training.steps": 4,
    "training.batch_size": 16,
    "training.log_every": 2,
    "training.checkpoint_every": 4,
    "training.sample_every": 4,
    "prior.latents": 1,
    "generator.depth": 2,
    "learner.samples": 32,
}


@pytest.fixture
def registered(monkeypatch):
    """Register a thing for one test."""
    return lambda registry, name, thing: monkeypatch.setitem(registry, name, thing)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "images.npy"
    rng = np.random.default_rng(0)
    np.save(path, (255 * rng.uniform(size=(64, 8, 8, 1)) ** 3).astype(np.uint8))
    return str(path)


def kaem_command(*words):
    assert cli.main([str(word) for word in words]) == 0, words


def refused(capsys, *words):
    assert cli.main([str(word) for word in words]) == 2, words
    return capsys.readouterr().err


def told(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        cli.main([*words, "--help"])
    assert leaving.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def trained(what, folder, *more, **settings):
    """A run with tiny settings, changed as a user would change them."""
    chosen = {name: value for name, value in TINY.items() if settings.get(name) != ...}
    chosen |= {name: value for name, value in settings.items() if value is not ...}
    changes = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    run = folder / "run"
    kaem_command("train", what, "--out", run, "--no-report", *changes, *more)
    kaem_command("sample", run, "-n", 3, "-o", folder / "samples.npz")
    x = np.load(folder / "samples.npz")["x"]
    assert x.shape == (3, 8, 8, 1)
    assert np.isfinite(x).all()
    return run


def shown(run):
    """Figures and the report of a run, which tell of it without being told what it is."""
    kaem_command("report", run)  # draws them all
    for name in ("densities", "influence", "training"):
        assert np.asarray(Image.open(run / "figures" / f"{name}.png").convert("L")).std() > 5
    return (run / "report.html").read_text()


class Slope(Wavelet):
    """The slope of a Gaussian."""

    def mother(self, x):
        x = self.tau * x
        return -x * jnp.exp(-0.5 * x**2)


def test_a_basis(registered, images, tmp_path, capsys):
    registered(BASES, "slope", Slope)
    assert "slope" in told(capsys, "train")
    run = trained(images, tmp_path, **{"prior.basis": "slope", "generator.basis": "slope"})
    model = kaem.load(run)
    assert type(model.prior.energies.basis) is Slope
    assert "slope densities" in shown(run)
    kaem_command("export", run, "--to", "lut", "--verify")
    message = refused(capsys, "export", run, "--to", "c")
    assert "Slope" in message
    assert "--to onnx" in message
    # The prior alone can be anywhere, also where the generator's functions are in tables.
    mixed = trained(images, tmp_path / "mixed", **{"prior.basis": "slope"})
    kaem_command("export", mixed, "--to", "c", "--verify")


def test_a_reference(registered, images, tmp_path, capsys):
    logistic = Reference(lambda z: -jnp.abs(z) - 2 * jnp.log1p(jnp.exp(-jnp.abs(z))), (-12.0, 12.0))
    registered(REFERENCES, "logistic", logistic)
    assert "logistic" in told(capsys, "train")
    run = trained(images, tmp_path, **{"prior.reference": "logistic"})
    assert kaem.load(run).prior.reference == "logistic"
    assert "reference logistic" in shown(run)
    kaem_command("export", run, "--to", "lut", "--verify")


class Halved(kaem.UnivariatePrior):
    """The univariate prior with half as many coordinates."""

    def __init__(self, latents: int, *, key, basis: str = "rbf", cells: int = 32) -> None:
        super().__init__(latents, latents + 1, key=key, basis=basis, cells=cells)


def test_a_prior(registered, images, tmp_path, capsys):
    registered(PRIORS, "halved", Halved)
    assert "halved" in told(capsys, "train")
    run = trained(images, tmp_path, **{"prior.kind": "halved", "prior.latents": 2})
    assert type(kaem.load(run).prior) is Halved
    assert kaem.load(run).prior.shape == (3, 2)
    assert "3 x 2 rbf densities" in shown(run)
    kaem_command("export", run, "--to", "c", "--verify")
    message = refused(
        capsys, "train", images, "--out", tmp_path / "no", "--set", "prior.kind=halved", "--set", "prior.domain=[0, 1]"
    )  # fmt: skip
    assert "there is no setting prior.domain" in message


class Outer(kaem.AbstractGenerator):
    """A sigmoid of linear maps of the latents and their squares."""

    weights: jax.Array
    data_shape: tuple[int, ...] = eqx.field(static=True)
    output: str = eqx.field(static=True)

    def __init__(self, coordinates: int, data_shape, *, key, scale: float = 0.1) -> None:
        shape = (2, coordinates, int(np.prod(data_shape)))
        self.weights = scale * jax.random.normal(key, shape)
        self.data_shape, self.output = tuple(data_shape), "sigmoid"

    def __call__(self, z):
        z = jnp.sum(z.reshape(len(z), -1), axis=1)
        logits = z @ self.weights[0] + z**2 @ self.weights[1]
        return jax.nn.sigmoid(logits).reshape(self.data_shape)


def test_a_generator(registered, images, tmp_path, capsys):
    registered(GENERATORS, "outer", Outer)
    assert "outer" in told(capsys, "train")
    changes = {"generator.kind": "outer", "generator.scale": 0.5, "generator.depth": ...}
    run = trained(images, tmp_path, **changes)
    assert type(kaem.load(run).generator) is Outer
    shown(run)
    kaem_command("export", run, "--to", "lut")
    assert "Outer" in refused(capsys, "export", run, "--to", "c")


def test_being_registered_changes_no_numbers(registered):
    keys = jax.random.split(jax.random.key(0), 3)
    prior = kaem.UnivariatePrior(2, key=keys[0])
    model = kaem.KAEM(prior, Outer(5, (4, 4, 1), key=keys[1]), noise=0.3)
    before = influence(model, keys[2], bases=4)
    registered(GENERATORS, "outer", Outer)
    after = influence(model, keys[2], bases=4)
    np.testing.assert_array_equal(before.jacobian, after.jacobian)
    np.testing.assert_array_equal(before.sweep, after.sweep)


class Lazy(ULA):
    """Moves half as often."""

    def move(self, evaluate, state, t, eta, key):
        moved, info = super().move(evaluate, state, t, eta, key)
        stays = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, moved.z.shape[:-1])
        z = jnp.where(stays[..., None], state.z, moved.z)
        return moved._replace(z=z), info._replace(acceptance=1 - jnp.mean(stays))


CHAINS = {"learner.kind": "langevin", "learner.samples": ..., "learner.steps": 3}


def test_a_sampler(registered, images, tmp_path, capsys):
    registered(SAMPLERS, "lazy", Lazy)
    assert "lazy" in told(capsys, "train")
    mixture = {"prior.kind": "mixture", "prior.basis": "rbf", "prior.cells": 64}
    run = trained(images, tmp_path, **CHAINS, **mixture, **{"learner.sampler": "lazy"})
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert 0.2 < np.mean([record["acceptance"] for record in history]) < 0.8
    assert "3 LAZY steps" in shown(run)


class Nearest(AbstractLearner):
    """Each example pulls the nearest of a few samples towards it."""

    samples: int = eqx.field(static=True, default=8)

    @property
    def info_names(self):
        return ("distance",)

    def objective(self, model, x, key, memory, progress):
        made = model.decode(jax.lax.stop_gradient(model.prior.sample(key, self.samples)))
        gaps = jnp.sum((x[:, None] - made[None]) ** 2, axis=(2, 3, 4))
        distance = jnp.mean(jnp.min(gaps, axis=1))
        return -distance, ({"distance": distance}, memory)

    def facts(self, last):
        return [("nearest", f"of {self.samples} samples")]


def test_a_learner(registered, images, tmp_path, capsys):
    registered(LEARNERS, "nearest", Nearest)
    assert "nearest" in told(capsys, "train")
    changes = {"learner.kind": "nearest", "training.steps": 12, "learner.samples": 16}
    run = trained(images, tmp_path, **changes)
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert history[-1]["distance"] < history[0]["distance"]
    assert "of 16 samples" in shown(run)
    drawn = training_curves(kaem.Run(run).history(), tmp_path / "curves.png")
    assert list(drawn["distance"]) == [record["distance"] for record in history]
    kaem_command("export", run, "--to", "c", "--verify")


class Brighter(kaem.KAEM):
    """A KAEM whose samples are brighter than it learned."""

    about = "A model of this test."
    usual = kaem.KAEM.usual | {"prior": "mixture"}
    gain: float = eqx.field(static=True, default=1.5)

    def decode(self, z, key=None):
        return jnp.clip(self.gain * super().decode(z, key), 0, 1)


def test_a_model(registered, images, tmp_path, capsys):
    registered(MODELS, "brighter", Brighter)
    assert "brighter" in told(capsys, "train")
    changes = {"model.kind": "brighter", "model.gain": 2.0, "prior.basis": "rbf"}
    run = trained(images, tmp_path, **changes)
    model = kaem.load(run)
    assert type(model) is Brighter
    assert model.gain == 2
    assert model.prior.shape == (3,)  # the usual prior of such a model
    assert "A model of this test." in shown(run)
    kaem_command("info", run)
    assert "gain" in refused(
        capsys, "train", images, "--out", tmp_path / "no", "--set", "model.gains=1"
    )


def test_a_dataset(registered, tmp_path, capsys, monkeypatch):
    digits = DATASETS["mnist5k"]
    registered(DATASETS, "fives", replace(digits, title="Fives"))
    kaem_command("data", "list")
    assert "fives" in capsys.readouterr().out
    kaem_command("data", "check", "fives")
    settings = kaem.settings_of("digits-kan", data="fives", steps=2)
    assert settings.data.name == "fives"


def test_a_preset(registered, images, tmp_path, capsys):
    values = kaem.settings.read_preset("digits-kan") | {"data": {"name": images}}
    registered(PRESETS, "mine", values | {"learner": {"samples": 40, "resampler": "none"}})
    assert "mine" in told(capsys, "train")
    run = trained("mine", tmp_path, **{"learner.samples": ...})
    record = json.loads((run / "config.json").read_text())
    assert record["what"] == "mine"
    assert record["settings"]["learner"]["samples"] == 40


def test_a_verb(registered, capsys, monkeypatch):
    module = types.ModuleType("hello_verb")
    module.configure = lambda parser: parser.add_argument("name")
    module.run = lambda options: {"hello": options.name}
    monkeypatch.setitem(sys.modules, "hello_verb", module)
    registered(cli.VERBS, "hello", cli.Verb("greet somebody", "hello_verb"))
    assert "hello greet somebody" in told(capsys)
    kaem_command("hello", "Emmy", "--json")
    assert json.loads(capsys.readouterr().out) == {"hello": "Emmy"}


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    """A run of what comes with the package."""
    return trained(images, tmp_path_factory.mktemp("run"))


def test_a_metric(registered, run, capsys):
    def brightness(sets):
        real, fake = (float(x.mean()) / 255 for x in (sets.real, sets.fake))
        return {"brightness": {"value": fake - real}}

    registered(
        METRICS, "brightness", Metric("how much brighter samples are", "samples", brightness)
    )
    assert "brightness how much brighter samples are" in told(capsys, "evaluate")
    kaem_command("evaluate", run, "--metric", "brightness", "--samples", 40)
    found = json.loads((run / "metrics.json").read_text())["details"]["brightness"]
    samples = kaem.sample(str(run), 40)
    expected = np.mean(np.floor(samples * 255 + 0.5)) / 255 - np.mean(kaem.Run(run).data()) / 255
    assert abs(found["value"] - expected) < 1e-6
    assert found["generated"]["n"] == 40
    assert "brightness" in shown(run)


def test_a_figure(registered, run, capsys):
    def draw(gallery, path):
        Image.fromarray(np.asarray(gallery.data[0, :, :, 0])).save(path)

    figure = Figure(about="one example", draw=draw, formats=("png",), caption="The first example.")
    registered(FIGURES, "first", figure)
    assert "first one example" in told(capsys, "plot")
    kaem_command("plot", run, "first")
    shown_pixels = np.asarray(Image.open(run / "figures" / "first.png"))
    np.testing.assert_array_equal(shown_pixels, kaem.Run(run).data()[0, :, :, 0])
    assert "The first example." in shown(run)
    assert "--count is for" in refused(capsys, "plot", run, "first", "--count", "3")


class Means(Target):
    """The means of the densities, as text."""

    summary = "means of the densities, as text"

    def files(self, subject, name="kaem"):
        means = np.asarray(subject.prior.mean()).ravel()
        return {f"{name}.txt": "\n".join(map(str, means)).encode()}

    def verify(self, folder, subject, name="kaem"):
        written = np.loadtxt(folder / f"{name}.txt", dtype=np.float32)
        return {"mismatches": int(np.sum(written != np.asarray(subject.prior.mean()).ravel()))}


def test_a_target(registered, run, tmp_path, capsys):
    registered(TARGETS, "means", Means())
    assert "means means of the densities, as text" in told(capsys, "export")
    kaem_command(
        "export", run, "--to", "means", "--verify", "-o", tmp_path / "out", "--name", "mine"
    )
    written = np.loadtxt(tmp_path / "out" / "mine.txt")
    np.testing.assert_allclose(written, np.ravel(kaem.load(run).prior.mean()), rtol=1e-6)
    assert json.loads((tmp_path / "out" / "verification.json").read_text())["mismatches"] == 0
    assert "--bits" in refused(capsys, "export", run, "--to", "means", "--bits", "8")
