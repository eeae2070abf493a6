"""The loop: determinism, dispatches, divergence, upkeep, and that it learns."""

import jax
import numpy as np

from kaem.training.dispatch import batch_indices
from kaem.training.loop import updates
from support.compilations import compilations
from support.training import fresh, images, run_to_end, same, tiny


def test_same_seed_same_bits_and_another_seed_other_bits():
    settings, x = tiny(), images()
    first, _ = run_to_end(fresh(settings, x), settings, x)
    second, _ = run_to_end(fresh(settings, x), settings, x)
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


def test_tables_are_refined_when_training_sharpens_the_densities():
    settings = tiny({"prior": {"cells": 4}, "upkeep": {"tolerance": 1e-5}})
    x = images()
    state = fresh(settings, x)
    cells = [b.state.model.prior.cells for b in updates(state, x, settings.plan())]
    assert cells[-1] > 4


def test_every_epoch_is_a_permutation():
    key = jax.random.key(3)
    rows = batch_indices(100, key, 10, 0, 20)
    assert sorted(rows[:10].ravel()) == list(range(100))
    assert sorted(rows[10:].ravel()) == list(range(100))
    assert not np.array_equal(rows[:10], rows[10:])
    np.testing.assert_array_equal(rows[7:13], batch_indices(100, key, 10, 7, 13))


def test_jit_does_not_recompile_after_the_first_dispatch():
    still = {"grid": {"prior": False, "generator": False}}
    # A batch size of its own: nothing was compiled for it before.
    settings = tiny(still, batch_size=10, checkpoint_every=30, sample_every=30)
    x = images()
    with compilations() as compiled:
        boundaries = updates(fresh(settings, x), x, settings.plan())
        marks = [compiled() for boundary in boundaries if boundary.metrics is not None]
    assert marks[0] > 0
    assert marks[-1] == marks[0]
