"""Grid updates: the function stays, and so does what the optimiser knows of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kaem import KAEM, KAN, UnivariatePrior
from kaem.bases import BASES, Functions, LinearBasis
from kaem.training.config import GridConfig
from kaem.training.loop import parameters
from kaem.training.upkeep import regridded

LINEAR = [name for name, cls in BASES.items() if issubclass(cls, LinearBasis)]


def bent(depth=3, scale=3.0):
    """A model whose layers are steep, as trained ones are: small changes grow on their way."""
    a, b = jax.random.split(jax.random.key(0))
    generator = KAN(5, (6, 6, 1), key=b, depth=depth)
    rng = np.random.default_rng(0)

    def strong(layer):
        noise = rng.normal(size=layer.basis.coefficients.shape) * scale / layer.shape[1]
        return eqx.tree_at(lambda f: f.basis.coefficients, layer, jnp.asarray(noise, jnp.float32))

    layers = tuple(map(strong, generator.layers))
    generator = eqx.tree_at(lambda g: g.layers, generator, layers)
    return KAEM(UnivariatePrior(2, key=a), generator, noise=0.2)


def test_a_grid_update_keeps_what_the_generator_makes():
    model = bent()
    fresh = model.prior.sample(jax.random.key(9), 500)
    before = np.asarray(model.decode(fresh))
    z = model.prior.sample(jax.random.key(1), 1000)
    moved = model.generator.regrid(z)
    after = np.asarray(eqx.tree_at(lambda m: m.generator, model, moved).decode(fresh))
    change = np.sqrt(np.mean((after - before) ** 2) / np.mean((before - before.mean(0)) ** 2))
    assert change < 0.01
    free = model.generator.regrid(z, change=None)
    after = np.asarray(eqx.tree_at(lambda m: m.generator, model, free).decode(fresh))
    change = np.sqrt(np.mean((after - before) ** 2) / np.mean((before - before.mean(0)) ** 2))
    assert change > 0.02  # what the limit prevents


@pytest.mark.parametrize("basis", LINEAR)
def test_a_refit_changes_no_function_by_more_than_a_hundredth(basis):
    functions = Functions.init(3, 4, key=jax.random.key(0), basis=basis, size=8, amplitude=20.0)
    x = jnp.asarray(np.random.default_rng(0).normal(0, 0.4, (3, 2000)), jnp.float32)
    moved = functions.regrid(x)
    nodes = jnp.quantile(x, jnp.linspace(0.01, 0.99, 200), axis=1).T
    old, new = functions.basis.curves(nodes), moved.basis.curves(nodes)
    spread = jnp.std(old, axis=-1)
    assert float(jnp.max(jnp.sqrt(jnp.mean((new - old) ** 2, axis=-1)) / spread)) < 0.03
    assert float(jnp.sqrt(jnp.mean((new - old) ** 2) / jnp.mean(spread**2))) < 0.012


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
    moved, carried = regridded(model, state, GridConfig(), jax.random.key(4), step=1)
    after = gradient(moved)
    name = ".generator.layers[1].basis.coefficients"
    assert not np.array_equal(
        moved.generator.layers[1].basis.grid, model.generator.layers[1].basis.grid
    )
    expected, found = np.asarray(after[name]), np.asarray(carried[0].mu[name])
    cosine = np.sum(expected * found) / np.linalg.norm(expected) / np.linalg.norm(found)
    stale = np.asarray(before[name])
    kept = np.sum(expected * stale) / np.linalg.norm(expected) / np.linalg.norm(stale)
    assert cosine > 0.98
    assert cosine > kept
    assert (np.asarray(carried[0].nu[name]) >= 0).all()
    assert int(carried[0].count) == int(state[0].count)
