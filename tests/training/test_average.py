"""Running means of the weights: against their definition, through kills, grids and files."""

import jax
import numpy as np
import optax
import pytest

import kaem
from kaem.data import load as load_data
from kaem.loading import read
from kaem.training import averaging
from kaem.training.optimiser import averages
from kaem.training.parameters import named, parameters
from support.training import fresh, images, run_to_end, same, tiny

AVERAGED = {"optimiser": {"average": 0.9}, "grid": {"prior": False, "generator": False}}


def test_the_mean_is_what_its_definition_says():
    decay, rate, steps = 0.8, 0.1, 12
    transform = averaging(optax.sgd(rate), decay)
    params = {"w": jax.numpy.array([1.0, -2.0])}
    state, w = transform.init(params), np.array([1.0, -2.0])
    mean = w.copy()
    for t in range(1, steps + 1):
        gradient = np.array([np.sin(t), np.cos(t)])
        changes, state = transform.update({"w": jax.numpy.array(gradient)}, state, params)
        params = optax.apply_updates(params, changes)
        w = w - rate * gradient
        kept = min(decay, t / (9 + t))
        mean = kept * mean + (1 - kept) * w
    np.testing.assert_allclose(params["w"], w, rtol=1e-5)
    np.testing.assert_allclose(averages(state)["w"], mean, rtol=1e-5)


def test_training_itself_is_not_changed_by_what_is_averaged():
    x = images(64)
    plain, _ = run_to_end(
        fresh(tiny({"grid": AVERAGED["grid"]}), x), tiny({"grid": AVERAGED["grid"]}), x
    )
    settings = tiny(AVERAGED)
    state, _ = run_to_end(fresh(settings, x), settings, x)
    assert same(named(plain.model), named(state.model))
    assert not same(parameters(state.best), parameters(state.model))
    assert plain.best is plain.model


def test_what_is_saved_and_returned_is_the_mean(tmp_path):
    x = load_data("mnist5k", limit=200)
    settings = tiny(AVERAGED)
    state, _ = run_to_end(fresh(settings, x), settings, x)
    outcome = kaem.train("digits-kan", tmp_path / "run", set=settings.to_dict())
    assert same(named(read(outcome.run.path)), named(state.best))
    fitted, _ = kaem.fit(
        settings.model(x.shape[1:]),
        x,
        key=jax.random.key(0),
        learner=settings.learner(),
        optimiser=settings.optimiser,
        upkeep=settings.upkeep,
        steps=30,
        batch_size=16,
        log_every=5,
    )
    assert same(named(fitted.trainable()), named(state.best))


def test_a_killed_run_goes_on_with_its_mean(tmp_path):
    settings = tiny(AVERAGED)
    whole = kaem.train("digits-kan", tmp_path / "whole", set=settings.to_dict())
    kaem.train("digits-kan", tmp_path / "cut", set=settings.to_dict(), steps=20)
    cut = kaem.train("digits-kan", tmp_path / "cut", resume=True, steps=30)
    assert same(named(read(whole.run.path)), named(read(cut.run.path)))


def test_a_mean_begins_anew_on_new_grids():
    x = images(64)
    settings = tiny({"optimiser": {"average": 0.99}}, steps=8)  # grids move at 0 and 7
    state, _ = run_to_end(fresh(settings, x), settings, x)
    assert int(state.optimiser.updates) == 1


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        kaem.Adam(average=decay)
