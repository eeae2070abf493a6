"""Run folders: interrupted, killed, resumed, and never overwritten."""

import json
import os
import shutil
import signal

import equinox as eqx
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import kaem
from kaem import UserError, train
from kaem.runs import RunFolder, Watcher
from kaem.settings import merge
from kaem.training import TrainingDiverged, checkpoint
from support.pictures import assert_drawn
from support.training import TINY, images


def test_run_folder_interrupted_and_resumed_equals_uninterrupted(blobs, whole, tmp_path):
    class Press(Watcher):
        def log(self, step, metrics, speed):
            if step == 15:
                os.kill(os.getpid(), signal.SIGINT)

    outcome = train("digits-kan", tmp_path / "broken", data=blobs, set=TINY, watcher=Press())
    broken = outcome.run
    assert outcome.interrupted
    assert outcome.step == 15
    assert checkpoint.steps(broken.checkpoints)[-1] == 15
    outcome = train("digits-kan", tmp_path / "broken", resume=True)
    assert outcome.step == 30
    assert whole.model_file.read_bytes() == broken.model_file.read_bytes()
    numbers = [[{**r, "seconds": 0} for r in run.history()] for run in (whole, broken)]
    assert numbers[0] == numbers[1]
    assert sorted(p.name for p in broken.samples.iterdir()) == [
        f"{s:08d}.png" for s in (10, 20, 30)
    ]


def test_resuming_on_other_data_is_refused(whole, tmp_path):
    np.save(tmp_path / "other.npy", images()[::-1])
    with pytest.raises(UserError, match="data differs"):
        train("digits-kan", whole.path, data=tmp_path / "other.npy", resume=True)


def test_what_is_of_another_run_is_refused(blobs, whole, tmp_path):
    """Of the same architecture, with another seed: neither its checkpoints nor its model are this run's."""
    other = merge(TINY, {"training": {"seed": 5}})
    strange = train("digits-kan", tmp_path / "other", data=blobs, set=other).run
    mixed = RunFolder(tmp_path / "mixed")
    shutil.copytree(whole.path, mixed.path)
    shutil.rmtree(mixed.checkpoints)
    shutil.copytree(strange.checkpoints, mixed.checkpoints)
    with pytest.raises(UserError, match="is of another run"):
        train("digits-kan", mixed.path, resume=True)
    shutil.copytree(whole.checkpoints, mixed.checkpoints, dirs_exist_ok=True)
    shutil.copy(strange.model_file, mixed.model_file)
    before = {path: path.read_bytes() for path in mixed.path.rglob("*") if path.is_file()}
    for use in (mixed.model, lambda: train("digits-kan", mixed.path, resume=True)):
        with pytest.raises(UserError, match=r"is of another run.* --resume` writes"):
            use()
    assert {path: path.read_bytes() for path in mixed.path.rglob("*") if path.is_file()} == before
    mixed.model_file.unlink()
    train("digits-kan", mixed.path, resume=True)
    assert mixed.model_file.read_bytes() == whole.model_file.read_bytes()


def test_runs_that_do_not_say_what_is_theirs_go_on(whole, tmp_path):
    """As those of earlier versions do not."""
    old = RunFolder(tmp_path / "old")
    shutil.copytree(whole.path, old.path)
    record = old.record()
    del record["run"]
    old.config_file.write_text(json.dumps(record))
    for path in [old.model_file, *old.checkpoints.glob("*/state.safetensors")]:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata()
        for newer in ("run", "loop", "digest", "digested"):
            header.pop(newer, None)
        if "config" in header:
            config = json.loads(header["config"])
            del config["run"]
            header["config"] = json.dumps(config)
        save_file(load_file(path), path, header)
    last = whole.settings().training.steps
    assert train("digits-kan", old.path, resume=True, steps=last + 10).step == last + 10
    assert old.model().data_shape == (28, 28, 1)


def test_a_run_is_named_by_its_path_or_by_itself(whole, tmp_path):
    run = kaem.Run(whole.path)
    for named in (str(whole.path), whole.path, run):
        assert kaem.sample(named, 2).shape == (2, 28, 28, 1)
        assert type(kaem.load(named)) is kaem.KAEM
        (drawn,) = kaem.plot(named, ["training"], folder=tmp_path)
        assert_drawn(drawn, 7.2)
    assert run.plot(["training"], folder=tmp_path) == run.plot("training", folder=tmp_path)


def test_links_lead_nowhere(whole, tmp_path):
    """What is written for a run stays in it, wherever links in it point."""
    copy, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(whole.path, copy)
    victim.mkdir()
    (victim / "state.safetensors").write_text("precious")
    last = whole.settings().training.steps
    (copy / "checkpoints" / f".{last + 10:08d}.tmp").symlink_to(victim)
    train("digits-kan", copy, resume=True, steps=last + 10)
    assert (victim / "state.safetensors").read_text() == "precious"
    assert checkpoint.steps(copy / "checkpoints")[-1] == last + 10
    (copy / "export").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        kaem.Run(copy).export("lut")
    assert [path.name for path in victim.iterdir()] == ["state.safetensors"]


def test_existing_runs_are_never_written_into(blobs, whole):
    with pytest.raises(UserError, match="--resume"):
        train("digits-kan", whole.path, data=blobs, set=TINY)


def test_divergence_is_named_and_the_last_good_model_kept(blobs, tmp_path):
    wild = merge(TINY, {"optimiser": {"prior_rate": 3e38, "generator_rate": 3e38}})
    run = RunFolder(tmp_path / "r")
    with pytest.raises(TrainingDiverged, match="is not finite") as caught:
        train("digits-kan", run.path, data=blobs, set=wild)
    assert caught.value.step < 30
    assert str(caught.value.step + 1) in str(caught.value)
    assert all(
        np.isfinite(a).all()
        for a in jax.tree.leaves(eqx.filter(caught.value.state.model, eqx.is_array))
    )
    assert checkpoint.steps(run.checkpoints)[-1] == caught.value.step
    assert run.model_file.is_file()
