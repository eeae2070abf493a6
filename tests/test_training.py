"""Training: determinism, bit-exact resuming, divergence, schedules, and that it learns."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

from kaem import KAEM, KAN, ImportanceSampling, UnivariatePrior, UserError, fit
from kaem.training import (
    Config,
    GridConfig,
    OptimiserConfig,
    TrainingConfig,
    TrainingDiverged,
    checkpoint,
)
from kaem.training.build import build_model, build_posterior
from kaem.training.config import override, preset_names, read_preset
from kaem.training.loop import batch_indices, grid_steps, initial_state, updates
from kaem.training.run import Run, start, train

TINY = {
    "data": {"name": "mnist5k", "limit": 200},
    "prior": {"latents": 1, "grid_size": 5, "cells": 16},
    "generator": {"depth": 1, "grid_size": 5},
    "posterior": {"samples": 16},
    "grid": {"interval": 7, "samples": 20},
    "training": {
        "steps": 30,
        "batch_size": 16,
        "log_every": 5,
        "checkpoint_every": 10,
        "sample_every": 10,
    },
}


def tiny(**training):
    return Config.from_dict(TINY | {"training": TINY["training"] | training})


def images(n=200):
    """Blobs whose position is the only factor of variation."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    centres = rng.uniform(8, 20, (n, 1, 1))
    return (255 * np.exp(-((x - centres) ** 2 + (y - 14) ** 2) / 20)).astype(np.uint8)[..., None]


def run_to_end(state, config, x):
    history = []
    for boundary in updates(state, x, build_posterior(config), config):
        state = boundary.state
        if boundary.metrics:
            history.append((state.step, boundary.metrics))
    return state, history


def fresh(config, x):
    return initial_state(build_model(config, x.shape[1:]), build_posterior(config), config, len(x))


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_same_seed_same_bits_and_another_seed_other_bits():
    config, x = tiny(), images()
    first, _ = run_to_end(fresh(config, x), config, x)
    second, _ = run_to_end(fresh(config, x), config, x)
    assert same(first.model, second.model)
    other = tiny(seed=1)
    third, _ = run_to_end(fresh(other, x), other, x)
    assert not same(first.model, third.model)


def test_state_does_not_depend_on_how_steps_are_dispatched():
    x = images()
    a, b = tiny(log_every=5), tiny(log_every=10)
    first, _ = run_to_end(fresh(a, x), a, x)
    second, _ = run_to_end(fresh(b, x), b, x)
    assert same(first.model, second.model)


def test_checkpoint_round_trip_is_bit_exact(tmp_path):
    config, x = tiny(), images()
    final, _ = run_to_end(fresh(config, x), config, x)
    for boundary in updates(fresh(config, x), x, build_posterior(config), config):
        if boundary.state.step == 20:
            checkpoint.write(tmp_path, boundary.state, keep=2)
            break
    restored, notes = checkpoint.read(tmp_path, fresh(config, x))
    assert restored.step == 20
    assert notes == []
    resumed, _ = run_to_end(restored, config, x)
    assert same((final.model, final.optimiser), (resumed.model, resumed.optimiser))


def _damaged(path, change):
    data = bytearray((path / "state.safetensors").read_bytes())
    change(data)
    (path / "state.safetensors").write_bytes(bytes(data))


def test_checkpoints_that_are_not_what_was_written_are_passed_over(tmp_path):
    """NaN, a flipped bit, a header that lies: the one before is used, and named."""
    from safetensors.numpy import load_file, save_file

    config, x = tiny(), images()
    state = fresh(config, x)

    def start(folder):
        for step in (10, 20):
            checkpoint.write(folder, replace(state, step=step), keep=2)
        return folder / "00000020"

    def flip(data):
        data[-9] ^= 1

    def read(folder):
        restored, notes = checkpoint.read(folder, state)
        assert restored.step == 10
        assert "00000020" in notes[0]
        return notes[0]

    _damaged(start(tmp_path / "flipped"), flip)
    assert "not what was written" in read(tmp_path / "flipped")
    for name, header in {
        "nan": {"step": "20", "cells": str(state.model.prior.cells)},
        "step": {"step": "1", "cells": str(state.model.prior.cells)},
        "cells": {"step": "20", "cells": "1000000000000"},
    }.items():
        file = start(tmp_path / name) / "state.safetensors"
        arrays = load_file(file)
        if name == "nan":
            arrays = {
                n: np.asarray(a * np.nan) if a.dtype.kind == "f" else a for n, a in arrays.items()
            }
        save_file(arrays, file, header)
        read(tmp_path / name)


def test_other_names_among_checkpoints_are_left_alone(tmp_path):
    config, x = tiny(), images()
    state = fresh(config, x)
    for name in ("300", "²", "9999999999x", "notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "00000400").mkdir()  # newer, and empty
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, replace(state, step=step), keep=2)
    assert checkpoint.steps(tmp_path) == [20, 30, 400]
    assert all((tmp_path / name).is_dir() for name in ("300", "²", "9999999999x", "notes"))
    restored, notes = checkpoint.read(tmp_path, state)
    assert restored.step == 30
    assert len(notes) == 1


def test_checkpoint_with_refined_tables_restores(tmp_path):
    config, x = tiny(), images()
    state = fresh(config, x)
    finer = replace(
        state,
        step=10,
        model=eqx.tree_at(lambda m: m.prior, state.model, state.model.prior.with_cells(32)),
    )
    checkpoint.write(tmp_path, finer, keep=1)
    restored, _ = checkpoint.read(tmp_path, fresh(config, x))
    assert restored.model.prior.cells == 32
    run_to_end(restored, config, x)


def test_a_broken_checkpoint_falls_back_to_an_older_one(tmp_path):
    config, x = tiny(), images()
    state = fresh(config, x)
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, replace(state, step=step), keep=2)
    assert checkpoint.steps(tmp_path) == [20, 30]
    (tmp_path / "00000030" / "state.safetensors").write_bytes(b"half a file")
    restored, notes = checkpoint.read(tmp_path, state)
    assert restored.step == 20
    assert "00000030" in notes[0]
    (tmp_path / "00000020" / "state.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.read(tmp_path, state)


def test_run_folder_interrupted_and_resumed_equals_uninterrupted(tmp_path):
    config, x = tiny(), images()
    whole = start(tmp_path / "whole", "test", config, x)
    train(whole, config, x)
    broken = start(tmp_path / "broken", "test", config, x)

    def press(step, *_):
        if step == 15:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = train(broken, config, x, on_log=press)
    assert outcome.interrupted
    assert outcome.step == 15
    assert checkpoint.steps(broken.checkpoints)[-1] == 15
    outcome = train(broken, config, x, resuming=True)
    assert outcome.step == 30
    assert whole.model_file.read_bytes() == broken.model_file.read_bytes()
    numbers = [[{**r, "seconds": 0} for r in run.history()] for run in (whole, broken)]
    assert numbers[0] == numbers[1]
    assert sorted(p.name for p in broken.samples.iterdir()) == [
        f"{s:08d}.png" for s in (10, 20, 30)
    ]


def test_resuming_on_other_data_is_refused(tmp_path):
    config, x = tiny(steps=10), images()
    run = start(tmp_path / "r", "test", config, x)
    train(run, config, x)
    with pytest.raises(UserError, match="data differs"):
        train(run, config, x[::-1], resuming=True)


def test_existing_runs_are_never_written_into(tmp_path):
    config, x = tiny(), images()
    start(tmp_path / "r", "test", config, x)
    with pytest.raises(UserError, match="--resume"):
        start(tmp_path / "r", "test", config, x)


def test_divergence_is_named_and_the_last_good_model_kept(tmp_path):
    config, x = tiny(steps=30), images()
    config = replace(config, optimiser=OptimiserConfig(prior_rate=1e30, generator_rate=1e30))
    run = start(tmp_path / "r", "test", config, x)
    with pytest.raises(TrainingDiverged, match="is not finite") as caught:
        train(run, config, x)
    assert caught.value.step < 30
    assert str(caught.value.step + 1) in str(caught.value)
    assert all(
        np.isfinite(a).all()
        for a in jax.tree.leaves(eqx.filter(caught.value.state.model, eqx.is_array))
    )
    assert checkpoint.steps(run.checkpoints) == [caught.value.step]
    assert run.model_file.is_file()


def test_tables_are_refined_when_training_sharpens_the_densities():
    config, x = tiny(), images()
    config = replace(config, prior=replace(config.prior, cells=4, tolerance=1e-5))
    state = fresh(config, x)
    cells = [b.state.model.prior.cells for b in updates(state, x, build_posterior(config), config)]
    assert cells[-1] > 4


def test_grid_steps_thin_out():
    steps = grid_steps(GridConfig(), 5000)
    assert steps[:3] == [0, 100, 211]
    assert all(
        b - a <= d - c for a, b, c, d in zip(steps, steps[1:], steps[1:], steps[2:], strict=False)
    )
    assert grid_steps(GridConfig(prior=False, generator=False), 1000) == []
    assert grid_steps(GridConfig(interval=10, decay=1.0), 35) == [0, 10, 20, 30]


def test_every_epoch_is_a_permutation():
    config = TrainingConfig(batch_size=10, seed=3)
    rows = batch_indices(100, config, 0, 20)
    assert sorted(rows[:10].ravel()) == list(range(100))
    assert sorted(rows[10:].ravel()) == list(range(100))
    assert not np.array_equal(rows[:10], rows[10:])
    np.testing.assert_array_equal(rows[7:13], batch_indices(100, config, 7, 13))


@pytest.mark.slow
def test_training_explains_the_data_better():
    """Over 300 updates the marginal likelihood of position-only images rises far above noise."""
    a, b = jax.random.split(jax.random.key(0))
    model = KAEM(UnivariatePrior(1, key=a), KAN(3, (28, 28, 1), key=b), noise=0.2)
    before = jax.tree.map(np.array, eqx.filter(model, eqx.is_array))
    trained, history = fit(
        model,
        images(),
        posterior=ImportanceSampling(64),
        steps=300,
        batch_size=50,
        optimiser=OptimiserConfig(prior_rate=1e-2, generator_rate=1e-2),
    )
    assert history[-1]["log_marginal"] > history[0]["log_marginal"] + 100
    assert [r["step"] for r in history] == list(range(50, 301, 50))
    assert trained.prior.cached is not None
    # The caller's model is untouched by the donation of buffers.
    assert same(before, eqx.filter(model, eqx.is_array))
    # What it generates is blobs: bright where the data is bright, dark where it is dark.
    mean = np.asarray(trained.sample(jax.random.key(1), 200)).mean(axis=0)[..., 0]
    real = images().mean(axis=0)[..., 0] / 255
    assert np.corrcoef(mean.ravel(), real.ravel())[0, 1] > 0.9


def test_presets_are_table_hp_nist():
    for name in ("mnist", "fashion-mnist", "mnist-uniform", "mnist-none"):
        config = Config.from_dict(read_preset(name))
        p, g, t = config.prior, config.generator, config.training
        assert (p.latents, p.basis, p.activation, p.grid_size) == (40, "rbf", "relu", 20)
        assert (p.amplitude, p.base_mean, p.base_scale, p.basis_scale) == (0.1, 1.0, 1.0, 1.0)
        assert (g.depth, g.noise, g.output, t.noise) == (2, 0.1, "sigmoid", 0.1)
        q = config.posterior
        assert (q.samples, q.threshold, q.resampler) == (100, 0.5, "residual")
        assert (config.grid.interval, config.grid.decay, config.grid.ratio) == (100, 0.999, 0.05)
        assert (config.data.limit, t.batch_size, t.steps) == (50_000, 100, 5000)
        o = config.optimiser
        assert (o.prior_rate, o.generator_rate, o.betas) == (1e-3, 1e-3, (0.9, 0.999))
        model = build_model(config, (28, 28, 1))
        assert model.prior.shape == (81, 40)
        expected = {"gaussian": (-1.5, 1.5), "uniform": (0.0, 1.0), "none": (-1.2, 1.2)}
        np.testing.assert_allclose(model.prior.domain[0], expected[p.reference])


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_makes_a_model(name):
    config = Config.from_dict(read_preset(name))
    size = config.data.size or 28
    shape = (size, size, config.data.channels or 1)
    assert build_model(config, shape).data_shape == shape
    build_posterior(config)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("prior.latent=3", "did you mean prior.latents"),
        ("training.steps=many", "a whole number"),
        ("training.steps=0", "positive"),
        ("training.noise=-1", "positive"),
        ("prior.domain=[1]", "a list such as"),
        ("steps", "section.name=value"),
        ("nothing.at=1", "there is no setting nothing"),
        ("posterior.kind=magic", "importance"),
        ("training.checkpoint_every=33", "multiple"),
        ("grid.ratio=0", "ratio"),
    ],
)
def test_bad_settings_are_named(assignment, message):
    with pytest.raises(UserError, match=message):
        Config.from_dict(override(TINY, assignment))


def test_settings_survive_json():
    config = Config.from_dict(override(read_preset("quickstart"), "prior.domain=[-2, 2]"))
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert Config.from_dict(override(TINY, "prior.activation=none")).prior.activation is None
    assert Config.from_dict(override(TINY, "prior.reference=none")).prior.reference == "none"


KILLED = """
import sys
from kaem.cli import main
sys.exit(main(sys.argv[1:]))
"""


def command(out, *extra):
    settings = [
        "data.limit=400",
        "prior.latents=1",
        "posterior.samples=32",
        "training.batch_size=32",
        "training.log_every=5",
        "training.checkpoint_every=5",
        "training.sample_every=10",
        "generator.depth=1",
        "prior.grid_size=5",
        "generator.grid_size=5",
        "grid.interval=8",
    ]
    sets = [a for s in settings for a in ("--set", s)] if "--resume" not in extra else []
    return [
        sys.executable,
        "-c",
        KILLED,
        "train",
        "quickstart",
        "--out",
        str(out),
        *sets,
        *extra,
        "--no-report",
    ]


@pytest.mark.parametrize("kills", [[0.3], pytest.param([1.1, 0.4], marks=pytest.mark.slow)])
def test_sigkill_at_any_moment_then_resume_is_byte_identical(tmp_path, kills):
    """Kill -9 some seconds into training, resume, and compare the file with an unkilled run's."""
    subprocess.run(command(tmp_path / "whole", "--steps", "120"), check=True, capture_output=True)
    out = tmp_path / "killed"
    for number, delay in enumerate(kills):
        extra = ("--resume",) if number else ()
        process = subprocess.Popen(
            command(out, "--steps", "120", *extra), stderr=subprocess.PIPE, text=True
        )
        for line in process.stderr:
            if line.startswith("step "):
                break
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stderr.close()
    subprocess.run(command(out, "--resume"), check=True, capture_output=True)
    whole, killed = (Run(tmp_path / name) for name in ("whole", "killed"))
    left, right = (r.model_file.read_bytes() for r in (whole, killed))
    assert left == right
    assert [r["step"] for r in killed.history()] == list(range(5, 121, 5))


def test_jit_does_not_recompile_after_the_first_dispatch():
    config, x = tiny(steps=30, checkpoint_every=30, sample_every=30), images()
    config = replace(config, grid=GridConfig(prior=False, generator=False))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None
    )
    marks = [len(compiled) for _ in updates(fresh(config, x), x, build_posterior(config), config)]
    assert marks[0] > 0
    assert marks[-1] == marks[0]


def test_fit_checks_the_data_against_the_model_it_was_given():
    a, b = jax.random.split(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    prior = UnivariatePrior(1, key=a, cells=16)
    with pytest.raises(UserError, match=r"makes values in \[0, 1\]"):
        fit(KAEM(prior, KAN(3, (3,), key=b)), x, steps=2, batch_size=8)
    with pytest.raises(UserError, match=r"shape \(4,\)"):
        fit(KAEM(prior, KAN(3, (4,), key=b, output="identity")), x, steps=2, batch_size=8)
    model = KAEM(prior, KAN(3, (3,), key=b, output="identity"), noise=0.5)
    _, history = fit(model, x, steps=2, batch_size=8, log_every=1)
    assert len(history) == 2
