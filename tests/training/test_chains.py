"""Training with chains: memory, schedules, devices, divergence, and that it learns."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from kaem.parallel import batch_mesh, training_mesh
from kaem.settings import Settings, merge
from kaem.training import TrainingDiverged, checkpoint
from kaem.training.dispatch import Dispatch, batch_indices
from kaem.training.loop import updates
from kaem.training.parameters import parameters
from kaem.training.plan import initial_state
from support.chains import THERMO, coloured, small
from support.compilations import compilations
from support.encoders import ENCODED
from support.training import fresh, run_to_end, same


@pytest.mark.parametrize(
    "learner",
    [
        {"persistent": True},  # compiles in a third of the other's time
        pytest.param(THERMO | {"persistent": True}, marks=pytest.mark.slow),
    ],
)
def test_chains_survive_a_checkpoint_bit_for_bit(tmp_path, learner):
    settings, x = small(learner), coloured()
    state = fresh(settings, x)
    first = np.array(state.memory["chains"])
    for boundary in updates(state, x, settings.plan()):
        if boundary.state.step == 8:
            checkpoint.write(tmp_path, boundary.state, keep=1)
        last = boundary.state
    restored, _ = checkpoint.read(tmp_path, fresh(settings, x))
    assert restored.step == 8
    again, _ = run_to_end(restored, settings, x)
    assert same((last.model, last.optimiser, last.memory), (again.model, again.optimiser, again.memory))  # fmt: skip
    moved = np.asarray(last.memory["chains"]) != first
    assert moved.all()  # 24 updates of 8 visit all 64 examples
    if "temperatures" in learner:
        assert first.shape == (64, 3, 7)
        assert not np.array_equal(last.memory["ladder"], fresh(settings, x).memory["ladder"])


def test_an_update_moves_the_chains_of_its_own_examples_only():
    settings, x = small({"persistent": True}), coloured()
    state, plan = fresh(settings, x), settings.plan()
    before = np.array(state.memory["chains"])
    chosen = batch_indices(len(x), plan.key, plan.batch_size, 0, 1)
    state = Dispatch(plan, x)(state, 1)
    moved = (np.asarray(state.memory["chains"]) != before).any(axis=1)
    assert set(np.flatnonzero(moved)) == set(chosen[0].tolist())


@pytest.mark.parametrize("schedule", [pytest.param("cosine", marks=pytest.mark.slow), "balanced"])
def test_no_schedule_recompiles(schedule):
    settings, x = small(THERMO | {"schedule": schedule, "p_end": 0.5}), coloured()
    state, dispatch = fresh(settings, x), Dispatch(settings.plan(), x)
    rungs, programs = [], []
    with compilations() as compiled:
        for start, stop in ((0, 1), (1, 4), (4, 6), (20, 24)):
            state = dispatch(replace(state, step=start, sums={}), stop)
            rungs.append(state.sums["t_1"] / (stop - start))
            programs.append(compiled())
    assert len({round(r, 7) for r in rungs}) == 4  # the ladder did change
    assert programs[-1] == programs[0]


@pytest.mark.devices
def test_devices_share_a_batch_and_learn():
    assert batch_mesh(8).size == 2
    assert batch_mesh(7) is None
    longer = {"steps": 240, "log_every": 40, "checkpoint_every": 240, "sample_every": 240}
    settings, x = small({"persistent": True, "steps": 5}, longer), coloured()
    _, history = run_to_end(fresh(settings, x), settings, x)
    errors = [metrics["reconstruction"] for _, metrics in history]
    assert errors[-1] < 0.5 * errors[0]
    assert all(h["lost"] == h["redrawn"] == 0 for _, h in history)


@pytest.mark.devices
@pytest.mark.parametrize(
    "settings",
    [
        small({"kind": "importance", "samples": 32}, prior={"kind": "univariate"}),
        small({"persistent": True}),
        pytest.param(
            small({"sampler": "mala"}, model={"generator_noise": 0.1}), marks=pytest.mark.slow
        ),
        pytest.param(small({"sampler": "sgld", "share": 0.5}), marks=pytest.mark.slow),
        pytest.param(small(THERMO), marks=pytest.mark.slow),
        small(THERMO | {"persistent": True, "criterion": "tempered"}),
        Settings.from_dict(merge(ENCODED, {"training": {"batch_size": 8}})),
    ],
    ids=["importance", "persistent", "mala", "sgld", "balanced", "tempered", "encoder"],
)
def test_two_devices_learn_what_one_does(settings, monkeypatch):
    """Examples get the same random numbers wherever they are, so that only rounding differs."""
    longer = {"steps": 50, "log_every": 10, "checkpoint_every": 50, "sample_every": 50}
    settings = Settings.from_dict(merge(settings.to_dict(), {"training": longer}))
    x, curves = coloured(), []
    monkeypatch.setattr(type(settings.learner()), "splits", lambda self, batch: batch)
    for mesh in (training_mesh, lambda batch: None):
        monkeypatch.setattr("kaem.training.dispatch.training_mesh", mesh)
        _, history = run_to_end(fresh(settings, x), settings, x)
        curves.append(np.array([metrics["loss"] for _, metrics in history]))
    assert len(curves[0]) == 5
    np.testing.assert_allclose(*curves, rtol=1e-5)


def test_a_loaded_model_is_trained_by_its_energies_not_by_its_tables():
    settings, x = small(), coloured()
    model = settings.model(x.shape[1:]).prepared(cells=64)
    state = initial_state(model, settings.plan(), len(x))
    assert state.model.prior.cached is None
    assert not any("cached" in name for name in parameters(state.model))


@pytest.mark.devices
def test_an_odd_batch_runs_on_one_device():
    settings, x = small(None, {"batch_size": 7, "steps": 4, "checkpoint_every": 4}), coloured()
    _, history = run_to_end(fresh(settings, x), settings, x)
    assert np.isfinite(history[-1][1]["loss"])


def test_a_diverging_step_is_named_with_advice():
    settings, x = small({"step_size": 3.0, "steps": 20}), coloured()
    with pytest.raises(TrainingDiverged, match=r"learner\.step_size = 3 is too large"):
        run_to_end(fresh(settings, x), settings, x)


def test_a_narrow_domain_stays_and_holds_all_latents():
    """The domain is part of the model: chains are reflected at its border."""
    settings, x = (
        small({"step_size": 0.05, "persistent": True}, prior={"domain": [-1.5, 1.5]}),
        coloured(),
    )
    final, _ = run_to_end(fresh(settings, x), settings, x)
    np.testing.assert_array_equal(final.model.prior.domain, [[-1.5, 1.5]])
    z = np.asarray(final.memory["chains"])
    assert np.abs(z).max() <= 1.5
    assert np.abs(z).max() > 1.4  # and they do get there


@pytest.mark.parametrize("extra", [{}, THERMO])
def test_one_chain_that_is_not_finite_is_redrawn_and_counted(extra):
    settings, x = small({"persistent": True} | extra), coloured()
    state = fresh(settings, x)
    chains = state.memory["chains"]
    state = replace(state, memory=state.memory | {"chains": chains.at[5].set(jnp.nan)})
    final, history = run_to_end(state, settings, x)
    assert final.step == settings.training.steps
    assert np.isfinite(final.memory["chains"]).all()
    # Example 5 is seen once in an epoch of eight batches of eight: redrawn then, and never again.
    redrawn = np.array([metrics["redrawn"] for _, metrics in history])
    np.testing.assert_allclose(redrawn.sum() * settings.training.log_every, 1 / 8)


def test_chains_refine_tables_for_the_score_too():
    settings, x = small(upkeep={"tolerance": 1.0, "score_tolerance": 1e-3}), coloured()
    state = fresh(settings, x)
    notes, last = [], None
    for boundary in updates(state, x, settings.plan()):
        notes += boundary.notes
        last = boundary
    assert "that of the score" in notes[0]
    assert last.state.model.prior.cells > 64
    assert last.metrics["score_error"] < 1e-3
