"""One command for a run: it starts it, continues it, or finds it finished; and refuses another's."""

from contextlib import contextmanager

import pytest

from kaem import UserError, train
from kaem.runs import RunFolder, session
from kaem.settings import merge
from kaem.training import checkpoint, loop
from support.runs import Listener, numbers
from support.training import TINY


def test_the_same_call_starts_continues_and_finds_the_run_finished(blobs, whole, tmp_path):
    def again(*stops, **changes):
        watcher = Listener(*stops)
        changes = {"data": blobs, "set": TINY} | changes
        out = tmp_path / "run"
        return train("digits-kan", out, resume="auto", watcher=watcher, **changes), watcher.told

    outcome, told = again(15)
    assert (outcome.step, outcome.interrupted) == (15, True)
    assert told[0].startswith("training digits-kan")
    outcome, told = again()
    assert (outcome.step, outcome.interrupted) == (30, False)
    assert "at step 15 of 30" in told[0]
    run = outcome.run
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(run) == numbers(whole)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.path.rglob("*") if p.is_file()}
    outcome, told = again()
    assert (outcome.step, outcome.interrupted, outcome.seconds) == (30, False, 0)
    assert outcome.metrics["loss"] == whole.history()[-1]["loss"]
    assert "trained already" in told[0]
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.path.rglob("*") if p.is_file()} == before  # fmt: skip

    with pytest.raises(UserError) as caught:
        again(seed=5, steps=20, set=merge(TINY, {"prior": {"grid_size": 6}, "training": {}}))
    for difference in (
        "prior.grid_size: run has 5, command says 6",
        "training.seed: run has 0, command says 5",
    ):
        assert difference in str(caught.value)
    assert "generator" not in str(caught.value)
    with pytest.raises(UserError, match=r"training\.steps: run has 30, command says 20"):
        again(set=merge(TINY, {"training": {"steps": 20}}))
    outcome, _ = again(set=merge(TINY, {"training": {"steps": 40}}))
    assert outcome.step == 40
    assert run.settings().training.steps == 40
    with pytest.raises(UserError, match="run has 40, command says 30"):
        again()
    # A model that is not what was written is written anew.
    data = bytearray(run.model_file.read_bytes())
    data[-3] ^= 4
    good, longer = run.model_file.read_bytes(), merge(TINY, {"training": {"steps": 40}})
    run.model_file.write_bytes(bytes(data))
    again(set=longer)
    assert run.model_file.read_bytes() == good


def test_what_a_kill_leaves_before_the_first_write_is_no_run(blobs, whole, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for left in (run.lock_file, run.start_file, run.path / ".config.json.7.tmp"):
        left.write_text("half")
    assert train("digits-kan", run.path, resume="auto", data=blobs, set=TINY).step == 30
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert not run.start_file.exists()  # it is of another run, and would be resumed from
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match="already exists"):
        train("digits-kan", tmp_path / "mine", resume="auto", data=blobs, set=TINY)
    with pytest.raises(UserError, match="must be True, False"):
        train("digits-kan", tmp_path / "new", resume="yes", data=blobs, set=TINY)
    assert not (tmp_path / "new").exists()


def test_a_stop_between_log_steps_changes_nothing(blobs, whole, tmp_path, monkeypatch):
    """Dispatches of one update each, and a stop after every fourth: the same model, and the same history."""
    monkeypatch.setattr(loop, "_SECONDS", 0.0)

    @contextmanager
    def after_four():
        looks = iter([False] * 3)
        yield lambda: next(looks, True)

    monkeypatch.setattr(session, "interruptible", after_four)
    reached = []
    while not reached or reached[-1] < 30:
        outcome = train("digits-kan", tmp_path / "run", resume="auto", data=blobs, set=TINY)
        reached.append(outcome.step)
        assert checkpoint.steps(outcome.run.checkpoints)[-1] == outcome.step
    assert reached == [*range(4, 30, 4), 30]
    assert outcome.run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert numbers(outcome.run) == numbers(whole)
    assert checkpoint.steps(outcome.run.checkpoints) == checkpoint.steps(whole.checkpoints)


def test_a_run_that_begins_with_another_ones_prior_goes_on_by_the_same_call(blobs, whole, tmp_path):
    """Also where the kill came after the copy of what it begins with, and before the record."""
    changes = {"data": blobs, "set": TINY, "prior_from": whole.path}
    straight = train("digits-kan", tmp_path / "straight", **changes).run
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.start_file.write_bytes(whole.model_file.read_bytes())  # of another time
    for stop in (10, None):
        train("digits-kan", run.path, resume="auto", watcher=Listener(stop), **changes)
    assert run.model_file.read_bytes() == straight.model_file.read_bytes()
    assert run.start_file.read_bytes() == straight.start_file.read_bytes()
    with pytest.raises(UserError, match=r"prior\.start: run has .*, command says null"):
        train("digits-kan", run.path, resume="auto", data=blobs, set=TINY)
