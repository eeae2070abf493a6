"""Training with chains: determinism, memory, schedules, divergence, and that it learns."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from kaem import UserError, load
from kaem.cli import main
from kaem.interpret.facts import facts
from kaem.parallel import batch_mesh
from kaem.training import Config, TrainingDiverged, checkpoint
from kaem.training.build import build_model, build_posterior
from kaem.training.config import preset_names, read_preset
from kaem.training.loop import Dispatch, batch_indices, initial_state, parameters, updates
from kaem.training.run import Run

SMALL = {
    "prior": {
        "kind": "mixture",
        "latents": 3,
        "basis": "morlet",
        "activation": "none",
        "domain": [-12.0, 12.0],
        "cells": 64,
        "tolerance": 1e-2,
    },
    "generator": {"kind": "cnn", "widths": [8], "noise": 0.0},
    "posterior": {"kind": "ula", "steps": 3},
    "optimiser": {"generator_rate": 3e-3, "prior_rate": 1e-3},
    "training": {
        "steps": 24,
        "batch_size": 8,
        "noise": 0.3,
        "log_every": 4,
        "checkpoint_every": 8,
        "sample_every": 24,
    },
}
THERMO = {"criterion": "thermodynamic", "temperatures": 3, "schedule": "balanced"}


def small(posterior=None, training=None):
    values = SMALL | {
        "posterior": SMALL["posterior"] | (posterior or {}),
        "training": SMALL["training"] | (training or {}),
    }
    return Config.from_dict(values)


def images(n=64):
    """Coloured blobs: where they are and what colour they have are the factors."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:8, :8]
    centres, colours = rng.uniform(2, 6, (n, 2, 1, 1)), rng.uniform(0.2, 1, (n, 1, 1, 3))
    blob = np.exp(-((x - centres[:, 0]) ** 2 + (y - centres[:, 1]) ** 2) / 4)
    return (255 * blob[..., None] * colours).astype(np.uint8)


def begin(config, x):
    posterior = build_posterior(config)
    return initial_state(build_model(config, x.shape[1:]), posterior, config, len(x)), posterior


def finish(state, config, x):
    history = []
    for boundary in updates(state, x, build_posterior(config), config):
        state = boundary.state
        history += [boundary.metrics] if boundary.metrics else []
    return state, history


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize(
    "posterior",
    [
        {"persistent": True},  # compiles in a third of the other's time
        pytest.param(THERMO | {"persistent": True}, marks=pytest.mark.slow),
    ],
)
def test_chains_survive_a_checkpoint_bit_for_bit(tmp_path, posterior):
    config, x = small(posterior), images()
    state, sampler = begin(config, x)
    first = np.array(state.memory["chains"])
    for boundary in updates(state, x, sampler, config):
        if boundary.state.step == 8:
            checkpoint.write(tmp_path, boundary.state, keep=1)
        last = boundary.state
    restored, _ = checkpoint.read(tmp_path, begin(config, x)[0])
    assert restored.step == 8
    again, _ = finish(restored, config, x)
    assert same((last.model, last.optimiser, last.memory), (again.model, again.optimiser, again.memory))  # fmt: skip
    moved = np.asarray(last.memory["chains"]) != first
    assert moved.all()  # 24 updates of 8 visit all 64 examples
    if "criterion" in posterior:
        assert first.shape == (64, 3, 7)
        assert not np.array_equal(last.memory["ladder"], begin(config, x)[0].memory["ladder"])


def test_an_update_moves_the_chains_of_its_own_examples_only():
    config, x = small({"persistent": True}), images()
    state, posterior = begin(config, x)
    before = np.array(state.memory["chains"])
    dispatch = Dispatch(config, posterior, state.model)
    chosen = batch_indices(len(x), config.training, 0, 1)
    state, _, _ = dispatch(state, jnp.asarray(x), chosen, jax.random.key(0))
    moved = (np.asarray(state.memory["chains"]) != before).any(axis=1)
    assert set(np.flatnonzero(moved)) == set(chosen[0].tolist())


@pytest.mark.parametrize("schedule", [pytest.param("cosine", marks=pytest.mark.slow), "balanced"])
def test_no_schedule_recompiles(schedule):
    config, x = small(THERMO | {"schedule": schedule, "p_end": 0.5}), images()
    state, posterior = begin(config, x)
    dispatch = Dispatch(config, posterior, state.model)
    data, key = jnp.asarray(x), jax.random.key(0)
    rungs = []
    for start, stop in ((0, 1), (1, 4), (4, 6), (20, 24)):
        state = replace(state, step=start)
        indices = batch_indices(len(x), config.training, start, stop)
        state, sums, finite = dispatch(state, data, indices, key)
        assert finite
        rungs.append(sums["t_1"] / (stop - start))
    assert len({round(r, 7) for r in rungs}) == 4  # the ladder did change
    assert dispatch._run._cache_size() == 1


def test_devices_share_a_batch_and_learn():
    assert batch_mesh(8).size == 2
    assert batch_mesh(7) is None
    longer = {"steps": 240, "log_every": 40, "checkpoint_every": 240, "sample_every": 240}
    config, x = small({"persistent": True, "steps": 5}, longer), images()
    _, history = finish(begin(config, x)[0], config, x)
    errors = [h["reconstruction"] for h in history]
    assert errors[-1] < 0.5 * errors[0]
    assert all(h["lost"] == h["redrawn"] == 0 for h in history)


def test_a_loaded_model_is_trained_by_its_energies_not_by_its_tables():
    config, x = small(), images()
    model = build_model(config, x.shape[1:]).prepared()
    state = initial_state(model, build_posterior(config), config, len(x))
    assert state.model.prior.cached is None
    assert not any("cached" in name for name in parameters(state.model))


@pytest.mark.slow
def test_an_odd_batch_runs_on_one_device():
    config, x = small(None, {"batch_size": 7, "steps": 4, "checkpoint_every": 4}), images()
    _, history = finish(begin(config, x)[0], config, x)
    assert np.isfinite(history[-1]["loss"])


def test_a_diverging_step_is_named_with_advice():
    config, x = small({"step_size": 3.0, "steps": 20}), images()
    with pytest.raises(TrainingDiverged, match=r"posterior\.step_size = 3 is too large"):
        finish(begin(config, x)[0], config, x)


def test_a_narrow_domain_stays_and_holds_all_latents():
    """The domain is part of the model: chains are reflected at its border."""
    config, x = small({"step_size": 0.05, "persistent": True}), images()
    config = replace(config, prior=replace(config.prior, domain=(-1.5, 1.5)))
    final, _ = finish(begin(config, x)[0], config, x)
    np.testing.assert_array_equal(final.model.prior.domain, [[-1.5, 1.5]])
    z = np.asarray(final.memory["chains"])
    assert np.abs(z).max() <= 1.5
    assert np.abs(z).max() > 1.4  # and they do get there


@pytest.mark.parametrize("extra", [{}, THERMO])
def test_one_chain_that_is_not_finite_is_redrawn_and_counted(extra):
    config, x = small({"persistent": True} | extra), images()
    state, _ = begin(config, x)
    chains = state.memory["chains"]
    state = replace(state, memory=state.memory | {"chains": chains.at[5].set(jnp.nan)})
    final, history = finish(state, config, x)
    assert final.step == config.training.steps
    assert np.isfinite(final.memory["chains"]).all()
    # Example 5 is seen once in an epoch of eight batches of eight: redrawn then, and never again.
    redrawn = np.array([h["redrawn"] for h in history])
    np.testing.assert_allclose(redrawn.sum() * config.training.log_every, 1 / 8)


def test_chains_refine_tables_for_the_score_too():
    config, x = small(), images()
    config = replace(config, prior=replace(config.prior, tolerance=1.0, score_tolerance=1e-3))
    state, posterior = begin(config, x)
    notes, last = [], None
    for boundary in updates(state, x, posterior, config):
        notes += boundary.notes
        last = boundary
    assert "that of the score" in notes[0]
    assert last.state.model.prior.cells > 64
    assert last.metrics["score_error"] < 1e-3


def test_rgb_presets_are_the_papers():
    for name in ("svhn", "cifar10", "celeba"):
        for suffix in ("", "-thermo", "-fast"):
            config = Config.from_dict(read_preset(name + suffix))
            p, g, post, t = config.prior, config.generator, config.posterior, config.training
            assert (p.kind, p.basis, p.latents, p.domain) == ("mixture", "morlet", 40, (-12, 12))
            assert (p.proportions, p.reference, p.activation) == ("uniform", "gaussian", None)
            assert (
                g.widths
                == {
                    "svhn": (128, 64, 32),
                    "cifar10": (256, 128, 64),
                    "celeba": (256, 128, 64, 32),
                }[name]
            )
            assert (t.batch_size, t.noise, post.step_size) == (50, 0.3, 0.01)
            assert config.data.size == (64 if name == "celeba" else 32)
            if suffix != "-fast":
                assert (post.steps, post.persistent, t.steps) == (40, False, 80_000)
                assert config.optimiser.generator_rate == 1e-4
                assert config.optimiser.prior_rate == 2e-5
                assert config.data.limit == 40_000
            if suffix == "-thermo":
                assert (post.criterion, post.temperatures) == ("thermodynamic", 10)
                assert (post.p_start, post.p_end, post.cycles) == (2, 0.5, 0)
    assert len(preset_names()) >= 16


# Bad input, the way a user meets it.


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
    monkeypatch.setattr("kaem.training.dry_run.dry_run", lambda config, x: {"shape": list(x.shape)})
    assert main(["train", "svhn-fast", "--data", photos, "--dry-run", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["shape"] == [60, 32, 32, 3]
    assert "note: 12 of 60 images" in shown.err
    assert "resized to 32 x 32" in shown.err


def test_bad_data_for_an_rgb_preset(tmp_path, capsys):
    rng = np.random.default_rng(0)
    grey = folder(tmp_path / "grey", rng.integers(0, 256, (60, 32, 32), dtype=np.uint8))
    message = refused(capsys, "svhn", "--data", grey, "--out", str(tmp_path / "r"))
    assert "grey" in message
    assert "data.channels=1" in message
    few = folder(tmp_path / "few", rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8))
    message = refused(capsys, "svhn", "--data", few, "--out", str(tmp_path / "r"))
    assert "10 of the 50 examples" in message
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["posterior.temperatures=0"], "posterior.temperatures must be positive, got 0"),
        (["posterior.schedule=fixed", "posterior.temperatures=2", "posterior.ladder=[0,1,0.5]"],
         "increase strictly from 0 to 1"),
        (["posterior.kind=importance"], "needs chains"),
        (["posterior.schedule=steep"], "schedule"),
        (["generator.widths=[8,8,8,8,8,8]"], "divisible by"),
        (["prior.negative_phase=sampled"], "exact negative phase"),
    ],
)  # fmt: skip
def test_bad_settings_for_a_thermodynamic_run(tmp_path, capsys, settings, message):
    data = tmp_path / "x.npy"
    np.save(data, np.zeros((60, 32, 32, 3), np.uint8))
    options = [part for s in settings for part in ("--set", s)]
    text = refused(
        capsys, "svhn-thermo", "--data", str(data), "--out", str(tmp_path / "r"), *options
    )
    assert message in text
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_train_and_sample_an_rgb_run(tmp_path, capsys):
    data = tmp_path / "blobs.npy"
    np.save(data, images())
    out = tmp_path / "run"
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"settings": SMALL | {"posterior": SMALL["posterior"] | THERMO}}))
    arguments = ["train", "svhn-thermo", "--data", str(data), "--out", str(out), "--json"]
    settings = ["--set", "data.size=8", "--set", "training.steps=8"]
    assert main([*arguments, "--config", str(config), "--no-report", *settings]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 <= result["metrics"]["swap_0"] <= 1
    assert main(["sample", str(out), "-n", "5", "-o", str(tmp_path / "s.npz"), "--json"]) == 0
    assert np.load(tmp_path / "s.npz")["x"].shape == (5, 8, 8, 3)
    said = dict(facts(Run.open(out), load(out)))
    assert said["prior"].startswith("7 mixtures of 3")
    assert "3 power posteriors" in said["posterior"]


@pytest.mark.slow
def test_the_report_of_an_rgb_run(tmp_path):
    data, out, config = tmp_path / "blobs.npy", tmp_path / "run", tmp_path / "c.json"
    np.save(data, images())
    config.write_text(json.dumps({"settings": SMALL | {"posterior": SMALL["posterior"] | THERMO}}))
    arguments = ["train", "svhn-thermo", "--data", str(data), "--out", str(out)]
    settings = ["--set", "data.size=8", "--set", "training.steps=8"]
    assert main([*arguments, "--config", str(config), *settings]) == 0
    drawn = {path.stem for path in (out / "figures").iterdir()}
    assert {"densities", "traversal", "interpolation", "temperatures", "reconstructions"} <= drawn


def test_errors_are_user_errors():
    with pytest.raises(UserError, match=r"posterior\.kind"):
        Config.from_dict({"posterior": {"kind": "gibbs"}})
