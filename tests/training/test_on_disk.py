"""Training from examples on disk is training from the same in memory, bit for bit."""

import jax
import numpy as np
import pytest

import kaem
from kaem.data import load
from kaem.loading import read
from kaem.runs import RunFolder
from kaem.settings import merge
from kaem.training.dispatch import Dispatch
from support.chains import coloured
from support.encoders import SPECTRAL
from support.models import digits, small
from support.runs import numbers
from support.training import TINY, fresh, images, run_to_end, same, tiny

SHORT = {"steps": 12, "batch_size": 16, "log_every": 4, "checkpoint_every": 4, "sample_every": 12}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def on_disk(x, folder):
    np.save(folder / "x.npy", x)
    return load(str(folder / "x.npy"), memory=0)


def test_the_loop_gives_the_same_bits(tmp_path):
    settings, x = tiny(), images()
    inside, logged = run_to_end(fresh(settings, x), settings, x)
    rows = on_disk(x, tmp_path)
    outside, again = run_to_end(fresh(settings, rows), settings, rows)
    assert not isinstance(rows, np.ndarray)
    assert same(inside.model, outside.model)
    assert logged == again


def test_batches_read_ahead_are_those_that_are_read_when_they_are_asked_for(monkeypatch):
    """Whatever numbers of updates the calls make."""
    settings, x = tiny(), images()
    plan, calls = settings.plan(), (1, 4, 9, 10, 15, 16, 18, 30)

    def trained():
        dispatch, state = Dispatch(plan, x), fresh(settings, x)
        for stop in calls:
            state = dispatch(state, stop)
        return state

    direct = []
    ahead = trained()
    batches = Dispatch._batches
    monkeypatch.setattr(Dispatch, "_read_ahead", lambda *_: None)
    monkeypatch.setattr(
        Dispatch, "_batches", lambda self, *at: (direct.append(at), batches(self, *at))[1]
    )
    assert same(ahead.model, trained().model)
    assert direct[:3] == [(0, 1), (1, 4), (4, 9)]


def test_fit_takes_examples_on_disk(tmp_path):
    x = digits(60)
    how = {"key": jax.random.key(0), "steps": 4, "batch_size": 10, "log_every": 2}
    inside, history = kaem.fit(small(), x, validation=x[:20], **how)
    rows = on_disk(x, tmp_path)
    outside, again = kaem.fit(small(), rows, validation=x[:20], **how)
    assert same(inside, outside)
    assert history == again


def test_alignment_and_lens_see_the_same_examples(tmp_path):
    np.save(tmp_path / "x.npy", coloured())
    sections = merge(SPECTRAL, {"data": {"limit": None, "size": 8, "channels": 3}})
    sections = merge(sections, {"training": SHORT})
    for name, memory in (("inside", None), ("outside", 0)):
        changes = merge(sections, {"data": {"memory": memory}})
        kaem.train("svhn", tmp_path / name, data=tmp_path / "x.npy", set=changes)
    assert same(read(tmp_path / "inside"), read(tmp_path / "outside"))
    assert numbers(RunFolder(tmp_path / "inside")) == numbers(RunFolder(tmp_path / "outside"))


def test_a_run_goes_on_with_its_data_on_disk_or_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", images())
    changes = merge(TINY, {"training": SHORT})
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def train(out, steps, memory, **how):
        sections = merge(changes, {"data": {"memory": memory}})
        kaem.train("digits-kan", out, data=tmp_path / "x.npy", set=sections, steps=steps, **how)

    train(whole, 12, None)
    train(cut, 4, None)
    train(cut, 8, 0, resume="auto")
    train(cut, 12, 256, resume="auto")
    assert same(read(whole), read(cut))
    assert numbers(RunFolder(whole)) == numbers(RunFolder(cut))
