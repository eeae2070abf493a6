"""Grid updates: when they are due, that the function stays, and what the optimiser knows of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from kaem.priors.alignment import aligned
from kaem.settings import Settings
from kaem.training import Grid, Upkeep, fit
from kaem.training.parameters import parameters
from kaem.training.upkeep import carried, turned
from support.encoders import ENCODED
from support.models import bent


def test_grid_steps_thin_out():
    steps = Grid().steps(5000)
    assert steps[:3] == [0, 100, 211]
    assert all(
        b - a <= d - c for a, b, c, d in zip(steps, steps[1:], steps[1:], steps[2:], strict=False)
    )
    assert Grid(prior=False, generator=False).steps(1000) == []
    assert Grid(interval=10, decay=1.0).steps(35) == [0, 10, 20, 30]


def test_moments_follow_the_coefficients():
    """Adam's first moment after a grid update is the gradient that the new coefficients have."""
    model = bent(depth=2, scale=0.3)
    z = model.prior.sample(jax.random.key(3), 200)
    x = jnp.full((200, 6, 6, 1), 0.4)

    def gradient(model):
        def loss(model):
            return jnp.mean(model.log_likelihood(x, model.decode(z)))

        return parameters(eqx.filter_grad(loss)(model))

    adam = optax.adam(1e-3, b1=0.0, b2=0.0)
    before = gradient(model)
    _, state = adam.update(before, adam.init(parameters(model)))
    moved = model.regridded(jax.random.key(4), Grid(), new=False)
    now = carried(state, model, moved)
    after = gradient(moved)
    name = ".generator.layers[1].basis.coefficients"
    assert not np.array_equal(
        moved.generator.layers[1].basis.grid, model.generator.layers[1].basis.grid
    )
    expected, found = np.asarray(after[name]), np.asarray(now[0].mu[name])
    cosine = np.sum(expected * found) / np.linalg.norm(expected) / np.linalg.norm(found)
    stale = np.asarray(before[name])
    kept = np.sum(expected * stale) / np.linalg.norm(expected) / np.linalg.norm(stale)
    assert cosine > 0.98
    assert cosine > kept
    assert (np.asarray(now[0].nu[name]) >= 0).all()
    assert int(now[0].count) == int(state[0].count)


def test_squares_stay_squares_under_any_name():
    """Adadelta calls them e_g and e_x: carried as means of gradients they would turn negative."""
    model = bent()
    rng = np.random.default_rng(0)
    values = parameters(model)
    state = optax.adadelta(1.0).init(values)
    filled = jax.tree.map(lambda leaf: jnp.asarray(rng.exponential(size=leaf.shape)), state)
    moved = model.regridded(jax.random.key(4), Grid(), new=True)
    now = carried(filled, model, moved)
    assert all((np.asarray(leaf) >= 0).all() for leaf in jax.tree.leaves(now))
    name = ".generator.layers[1].basis.coefficients"
    carries = next(i for i, part in enumerate(now) if hasattr(part, "e_g"))
    assert not np.array_equal(now[carries].e_g[name], filled[carries].e_g[name])


def test_moments_follow_an_alignment():
    """Adam's first moments after it are the gradients in the new coordinates, of the same function."""
    model = Settings.from_dict(ENCODED).model((8, 8, 3))
    rng = np.random.default_rng(0)
    mixing = np.eye(4) + 0.5 * rng.normal(size=(4, 4))
    found = aligned(model.prior, 0.3 + rng.laplace(size=(2000, 4)) @ mixing.T)
    moved = model.moved(found)
    s = rng.normal(size=(64, 4))
    z = np.asarray(found.offset, float) + s @ np.asarray(found.mixing, float).T
    goal = jnp.asarray(rng.normal(size=(64, 8, 8, 3)), jnp.float32)

    def gradient(model, latents):
        def loss(model):
            return jnp.sum(goal * model.decode(jnp.asarray(latents, jnp.float32)))

        return parameters(eqx.filter_grad(loss)(model))

    adam = optax.adam(1e-3, b1=0.0, b2=0.0)
    before, after = gradient(model, z), gradient(moved, s)
    _, state = adam.update(before, adam.init(parameters(model)))
    now = turned(state, model, found)
    name = ".generator.projection"
    size = np.abs(after[name]).max()
    assert np.abs(before[name] - after[name]).max() > 0.1 * size
    for name in (n for n in after if n.startswith(".generator")):
        assert np.allclose(now[0].mu[name], after[name], atol=1e-4 * np.abs(after[name]).max())
        assert (np.asarray(now[0].nu[name]) >= 0).all()
    others = [n for n in after if n.startswith(".encoder")]
    assert all(np.array_equal(now[0].mu[n], state[0].mu[n]) for n in others)
    assert jax.tree.structure(now) == jax.tree.structure(state)


def test_more_events_than_updates_are_one_after_each():
    often = Upkeep(alignments=10**12, focusings=10**12)
    assert often.aligning_steps(30) == set(range(1, 31))
    assert often.focusing_steps(30) <= set(range(1, 31))


def test_an_alignment_of_too_few_examples_is_told_once():
    """Of four latents, eight examples are too few."""
    model = Settings.from_dict(ENCODED).model((8, 8, 1))
    x = np.random.default_rng(0).random((48, 8, 8, 1)).astype(np.float32)
    options = {"key": jax.random.key(0), "steps": 4, "batch_size": 8, "log_every": 1}
    _, history = fit(model, x, upkeep=Upkeep(alignments=4, aligned_examples=8), **options)
    told = [note for record in history for note in record.get("notes", ()) if "align" in note]
    assert len(told) == 1
    assert "the 4 latents, got 8; raise upkeep.aligned_examples" in told[0]
