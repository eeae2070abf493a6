"""`kaem.fit` and `kaem.train` are the same trainer."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import kaem
from kaem import Grid, Upkeep
from kaem.data import load as load_data
from kaem.loading import read
from kaem.runs import Watcher
from kaem.settings import Settings, merge, read_preset
from kaem.training.parameters import named
from support.chains import SMALL, coloured
from support.compilations import compilations
from support.encoders import SPECTRAL
from support.models import digits, small
from support.training import TINY, same, tiny

SHORT = {"steps": 12, "batch_size": 16, "log_every": 4, "checkpoint_every": 4, "sample_every": 12}
# With as many cells as the exact tables need: refining them would compile for each number of cells.
PERSISTENT = merge(SMALL, {"learner": {"persistent": True}, "prior": {"cells": 2048}})


def chains():
    values = merge(PERSISTENT, {"training": SHORT})
    return "svhn-paper", merge(values, {"data": {"size": 8, "limit": None}}), coloured()


def digits_of_kan():
    return "digits-kan", merge(TINY, {"training": SHORT}), load_data("mnist5k", limit=200)


def encoder():
    sections = {
        "prior": {"coordinates": 4},
        "generator": {"widths": [4]},
        "encoder": {"widths": [4, 4]},
        "data": {"limit": None, "size": 8, "channels": 3},
        "training": SHORT,
    }
    return "vae-digits", sections, coloured()


def aligned():
    """An encoder, averaged weights, alignment at steps 4, 8 and 12, and a lens that is adjusted at 8 and 10."""
    sections = merge(SPECTRAL, {"data": {"limit": None, "size": 8, "channels": 3}})
    return "svhn", merge(sections, {"training": SHORT}), coloured()


@pytest.mark.parametrize("case", [digits_of_kan, chains, encoder, aligned])
def test_the_same_objects_data_and_seed_give_the_same_bits(case, tmp_path):
    what, changes, x = case()
    np.save(tmp_path / "x.npy", x)
    said = []
    watcher = Watcher()
    watcher.say = said.append
    outcome = kaem.train(
        what, tmp_path / "run", data=tmp_path / "x.npy", set=changes, seed=3, watcher=watcher
    )
    settings = outcome.run.settings()
    assert settings.training.seed == 3
    fitted, history = kaem.fit(
        settings.model(x.shape[1:]),
        x,
        key=jax.random.key(3),
        learner=settings.learner(),
        optimiser=settings.optimiser,
        upkeep=settings.upkeep,
        augmentation=settings.augmentation,
        steps=12,
        batch_size=16,
        log_every=4,
    )
    trained = read(outcome.run.path)
    assert named(trained).keys() == named(fitted.trainable()).keys()
    assert same(named(trained), named(fitted.trainable()))
    logged = [{n: v for n, v in r.items() if n != "seconds"} for r in outcome.run.history()]
    assert logged == [{n: v for n, v in r.items() if n != "notes"} for r in history]
    assert [note for record in history for note in record.get("notes", [])] == [
        line for line in said if "refined" in line or "effective" in line
    ]


def test_the_notes_of_a_run_are_in_the_history_of_fit():
    settings = tiny({"prior": {"cells": 4}, "upkeep": {"tolerance": 1e-5}}, steps=10)
    x = load_data("mnist5k", limit=64)
    _, history = kaem.fit(
        settings.model(x.shape[1:]),
        x,
        key=jax.random.key(0),
        learner=settings.learner(),
        upkeep=settings.upkeep,
        augmentation=settings.augmentation,
        steps=10,
        batch_size=16,
        log_every=5,
    )
    notes = [note for record in history for note in record.get("notes", [])]
    assert "tables refined from 4 to" in notes[0]


STILL = Upkeep(grid=Grid(prior=False, generator=False))


def test_other_numbers_of_the_same_shape_compile_nothing():
    settings = Settings.from_dict(PERSISTENT)
    model, x = settings.model((8, 8, 3)), coloured()
    learner = settings.learner()

    def fitted(noise, step_size, seed):
        _, history = kaem.fit(
            replace(model, noise=noise),
            x,
            key=jax.random.key(seed),
            learner=replace(learner, step_size=step_size),
            upkeep=replace(STILL, tolerance=1.0, score_tolerance=1e3),
            steps=4,
            batch_size=8,
            log_every=2,
        )
        return history[-1]["loss"]

    with compilations() as compiled:
        first = fitted(0.3, 0.01, 0)
        before = compiled()
        assert before > 0
        others = [fitted(0.4, 0.01, 0), fitted(0.3, 0.02, 0), fitted(0.3, 0.01, 1)]
        assert compiled() == before
    assert len({first, *others}) == 4  # and the numbers matter


def test_weight_decay_leaves_grids_and_domains_alone():
    model = small()
    adamw = optax.adamw(1e-2, weight_decay=0.5)
    trained, _ = kaem.fit(
        model,
        digits(),
        key=jax.random.key(0),
        optimiser=adamw,
        upkeep=STILL,
        steps=3,
        batch_size=32,
        log_every=3,
    )
    before, after = named(model), named(trained.trainable())
    fixed = {name for name in before if name.endswith((".grid", ".domain"))}
    assert len(fixed) == 4  # of the prior's energies, two layers, and the prior
    for name, value in before.items():
        assert np.array_equal(value, after[name]) == (name in fixed), name


def test_what_is_frozen_keeps_its_bits_and_the_rest_is_trained():
    """Grid updates leave a frozen prior alone, too."""
    model = small()
    trained, _ = kaem.fit(
        model,
        digits(),
        key=jax.random.key(0),
        freeze=lambda model: model.prior,
        steps=3,
        batch_size=32,
        log_every=3,
    )
    arrays = eqx.filter(model.prior, eqx.is_array)
    assert same(arrays, eqx.filter(trained.prior.trainable(), eqx.is_array))
    before, after = named(model.generator), named(trained.generator.trainable())
    assert not any(np.array_equal(before[name], after[name]) for name in before)


def test_training_starts_from_the_preset_it_is_given():
    """`settings_of` and what a run records are the same settings."""
    settings = kaem.settings_of("digits-kan", steps=7, seed=5)
    expected = merge(read_preset("digits-kan"), {"training": {"steps": 7, "seed": 5}})
    assert settings == Settings.from_dict(expected)
