"""A training that diverges goes back, and on with half of its rates; once, and the same way however it was stopped."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem import train
from kaem.learning import LEARNERS, ImportanceSampling
from kaem.loading import read_config
from kaem.runs import RunFolder
from kaem.settings import merge
from kaem.training import TrainingDiverged, checkpoint
from support.runs import Listener, numbers
from support.training import TINY, images


class Fragile(ImportanceSampling):
    """Is lost as soon as one parameter of the generator is beyond a limit, which it nears with every update."""

    limit: float = 1.0

    def objective(self, model, x, key, memory, progress):
        value, kept = super().objective(model, x, key, memory, progress)
        return jnp.where(model.generator.layers[0].basis.log_tau > self.limit, jnp.nan, value), kept


@pytest.fixture
def fragile(monkeypatch, tmp_path):
    """Return settings of a run of 25 steps with a checkpoint every 10, and data, by the limit."""
    monkeypatch.setitem(LEARNERS, "fragile", Fragile)
    np.save(tmp_path / "blobs.npy", images())

    def settings(limit):
        more = {
            "learner": {"kind": "fragile", "limit": limit},
            "optimiser": {"decay": "constant"},
            "training": {"steps": 25},
        }
        return {"data": tmp_path / "blobs.npy", "set": merge(TINY, more)}

    return settings


# The parameter is 0.0091 at step 10, 0.0200 at step 20, and moves by 0.0006 at half of the rates.
ONCE, TWICE, ALWAYS = 0.0195, 0.0120, -1.0


def test_training_goes_back_and_on_with_half_of_the_rates(fragile, tmp_path):
    watcher = Listener()
    run = train("digits-kan", tmp_path / "run", watcher=watcher, **fragile(ONCE)).run
    (said,) = (message for message in watcher.told if "diverged" in message)
    assert "training diverged at step 21" in said
    assert "back to step 10" in said  # where 20 was saved, its gradient is not finite at any rate
    assert [record["step"] for record in run.history()] == [5, 10, 15, 20, 25]
    assert [record.get("rates", 1) for record in run.history()] == [1, 1, 0.5, 0.5, 0.5]
    record = run.record()
    assert record["diverged"] | {"tensor": ""} == {
        "step": 21,
        "tensor": "",
        "from": 10,
        "rates": 0.5,
    }
    own = run.settings().optimiser
    assert read_config(run.model_file)["rates"] == 0.5

    # Adam moves by at most its rate, more or less: half of it from step 10 on, by the model itself.
    gone = float(run.model().generator.layers[0].basis.log_tau) - 0.0091
    assert 0.4 * 15 * own.generator_rate < gone < 0.6 * 15 * own.generator_rate

    # The same, however it was stopped, and killed where the decision was half written down.
    for name, stops in (("early", (5, 15)), ("late", (20, 15))):
        out = tmp_path / name
        for stop in (stops[:1], stops[1:], ()):
            train("digits-kan", out, resume="auto", watcher=Listener(*stop), **fragile(ONCE))
        other = RunFolder(out)
        assert other.model_file.read_bytes() == run.model_file.read_bytes()
        assert numbers(other) == numbers(run)
    assert train("digits-kan", run.path, resume="auto", **fragile(ONCE)).seconds == 0


@pytest.mark.parametrize(
    ("place", "left"),
    [("kaem.training.checkpoint.remove", [10, 20]), ("kaem.runs.session.write_atomically", [10])],
)
def test_a_kill_while_going_back_changes_nothing(fragile, tmp_path, monkeypatch, place, left):
    """With the older checkpoint rewritten and the newer one still there; and with all done but the record."""

    def killed(*_):
        raise KeyboardInterrupt

    whole = train("digits-kan", tmp_path / "whole", **fragile(ONCE)).run
    run = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(place, killed)
        with pytest.raises(KeyboardInterrupt):
            train("digits-kan", run.path, **fragile(ONCE))
    assert checkpoint.steps(run.checkpoints) == left
    train("digits-kan", run.path, resume="auto", **fragile(ONCE))
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(run) == numbers(whole)


@pytest.mark.parametrize("limit", [TWICE, ALWAYS])
def test_the_second_divergence_is_the_end(fragile, tmp_path, limit):
    run = RunFolder(tmp_path / "run")
    watcher = Listener()
    with pytest.raises(TrainingDiverged, match="start a new run") as caught:
        train("digits-kan", run.path, watcher=watcher, **fragile(limit))
    assert sum("diverged" in message for message in watcher.told) == 1
    assert all(
        np.isfinite(leaf).all()
        for leaf in jax.tree.leaves(eqx.filter(caught.value.state.model, eqx.is_array))
    )
    assert checkpoint.steps(run.checkpoints)[-1] == caught.value.step
    assert run.model_file.is_file()
    json.dumps(numbers(run), allow_nan=False)
    # Once more: the same end, at once.
    with pytest.raises(TrainingDiverged) as again:
        train("digits-kan", run.path, resume="auto", **fragile(limit))
    assert again.value.step == caught.value.step
