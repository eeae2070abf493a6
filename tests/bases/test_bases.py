"""Every basis, through the same properties, against float64 NumPy and SciPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaem.bases import ACTIVATIONS, BASES, Functions, LinearBasis
from kaem.bench import oracle

P, Q = 3, 4


def make(basis, activation="relu", seed=0, strength=1.0):
    """A bank with functions of visible size on [-1.5, 2]."""
    key, value_key = jax.random.split(jax.random.key(seed))
    functions = Functions.init(
        P, Q, key=key, basis=basis, size=8, interval=(-1.5, 2.0), activation=activation
    )
    if isinstance(functions.basis, LinearBasis):
        values = jax.random.normal(value_key, functions.basis.coefficients.shape) * strength
        return eqx.tree_at(lambda f: f.basis.coefficients, functions, values)
    return functions


curves_of = eqx.filter_jit(Functions.curves)  # operation by operation takes longer to compile


@pytest.fixture(params=list(BASES))
def basis(request):
    return request.param


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_values_match_float64(basis, activation):
    functions = make(basis, activation)
    z = np.linspace(-1.49, 1.99, 57)
    curves = curves_of(functions, np.tile(z.astype(np.float32), (P, 1)))
    for q in range(Q):
        for p in range(P):
            expected = oracle.energy(functions, q, p)(z.astype(np.float32).astype(np.float64))
            np.testing.assert_allclose(curves[q, p], expected, atol=3e-5, rtol=1e-5)


def test_three_ways_of_evaluating_agree(basis):
    functions = make(basis)
    x = jax.random.uniform(jax.random.key(1), (P,), minval=-1.4, maxval=1.9)
    curves = np.asarray(curves_of(functions, x[:, None]))[..., 0]
    own, layer = eqx.filter_jit(lambda f, x: (f(jnp.broadcast_to(x, (Q, P))), f.layer(x)))(
        functions, x
    )
    np.testing.assert_allclose(own, curves, atol=2e-5)
    np.testing.assert_allclose(layer, curves.sum(axis=1), atol=5e-5)


def test_expectation_is_the_weighted_sum_and_so_is_its_gradient(basis):
    functions = make(basis)
    z = jax.random.uniform(jax.random.key(2), (Q, P, 23), minval=-1.4, maxval=1.9)
    w = jax.random.uniform(jax.random.key(3), (23,))
    params, static = eqx.partition(functions, eqx.is_inexact_array)

    def fused(params):
        return jnp.sum(jnp.sin(eqx.combine(params, static).expectation(z, w)))

    def plain(params):
        values = jax.vmap(eqx.combine(params, static), in_axes=-1, out_axes=-1)(z)
        return jnp.sum(jnp.sin(values @ w))

    (value, ours), (expected, theirs) = (
        jax.jit(jax.value_and_grad(function))(params) for function in (fused, plain)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-4, rtol=1e-3)


def test_derivatives_match_finite_differences(basis):
    functions = make(basis)
    z = jax.random.uniform(jax.random.key(4), (Q, P), minval=-1.3, maxval=1.8)
    slope = jax.jit(jax.grad(lambda z: jnp.sum(functions(z))))(z)
    h = 1e-5
    for q in range(Q):
        for p in range(P):
            f = oracle.energy(functions, q, p)
            x = np.array([float(z[q, p])])
            expected = (f(x + h) - f(x - h)) / (2 * h)
            np.testing.assert_allclose(slope[q, p], expected[0], atol=1e-3, rtol=1e-3)


def test_everything_is_trainable_but_the_grid(basis):
    functions = make(basis, "silu")
    z = jax.random.uniform(jax.random.key(5), (Q, P), minval=-1.3, maxval=1.8)
    grads = eqx.filter_grad(lambda f: jnp.sum(jnp.cos(3 * f(z))))(functions)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        if name.endswith("grid"):
            assert not np.any(leaf), name
        elif not name.endswith("tau") or basis in ("morlet", "mexican-hat", "rbf"):
            assert np.any(leaf), name


LINEAR = [name for name, cls in BASES.items() if issubclass(cls, LinearBasis)]


@pytest.mark.parametrize("basis", LINEAR)
def test_regridding_preserves_the_function(basis):
    """On a grid that covers the same range more finely where the samples are."""
    functions = make(basis, strength=0.3)
    samples = jnp.clip(0.3 + 0.6 * jax.random.normal(jax.random.key(6), (P, 4000)), -1.5, 2.0)
    bounds = jnp.tile(jnp.array([-1.5, 2.0]), (P, 1))
    moved = functions.regrid(samples, ratio=0.3, bounds=bounds)
    x = jnp.sort(samples, axis=1)[:, ::40]
    before, after = curves_of(functions, x), curves_of(moved, x)
    error = np.sqrt(np.mean((before - after) ** 2) / np.var(before))
    # Polynomials and Fourier series only change their range: nothing is lost at all.
    assert error < (1e-3 if basis in ("chebyshev", "fourier") else 0.12)


def test_regridding_moves_the_grid_to_the_samples():
    functions = make("rbf")
    samples = 5 + 0.1 * jax.random.normal(jax.random.key(7), (P, 2000))
    moved = functions.regrid(samples, ratio=0.05)
    grid = np.asarray(moved.basis.grid)
    assert (np.diff(grid, axis=1) > 0).all()
    assert (grid[:, 0] < samples.min(axis=1)).all()
    assert (grid[:, -1] > samples.max(axis=1)).all()
    quantiles = np.quantile(samples, np.linspace(0, 1, grid.shape[1]), axis=1).T
    np.testing.assert_allclose(grid[:, 1:-1], quantiles[:, 1:-1], atol=0.05)


def test_regridding_an_rbf_to_itself_changes_nothing():
    functions = make("rbf")
    even = jnp.tile(jnp.linspace(-1.5, 2.0, 9), (P, 1))
    same = functions.regrid(even, ratio=1.0, bounds=even[:, [0, -1]])
    np.testing.assert_allclose(same.basis.grid, functions.basis.grid, atol=1e-6)
    np.testing.assert_allclose(same.basis.coefficients, functions.basis.coefficients, atol=2e-3)


def test_wavelets_have_no_grid_to_move():
    functions = make("morlet")
    assert eqx.tree_equal(functions.regrid(jnp.ones((P, 10))), functions)


@settings(max_examples=25, deadline=None)
@given(st.floats(-100, 100), st.sampled_from(list(BASES)))
def test_far_inputs_stay_finite(x, name):
    functions = make(name)
    assert np.isfinite(eqx.filter_jit(functions)(np.full((Q, P), x, np.float32))).all()


def test_initialisation_is_small_and_varied(basis):
    functions = Functions.init(40, 81, key=jax.random.key(0), basis=basis, interval=(-1.5, 1.5))
    curves = curves_of(functions, np.tile(np.linspace(-1.5, 1.5, 50, dtype=np.float32), (40, 1)))
    assert 0 < np.std(curves) < 0.5
    assert np.std(np.asarray(curves).mean(axis=2)) > 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"basis": "spline"}, "rbf"),
        ({"activation": "gelu"}, "relu"),
        ({"size": 1}, "size"),
        ({"interval": (1.0, -1.0)}, "interval"),
    ],
)
def test_bad_arguments_say_what_to_do(change, word):
    with pytest.raises(ValueError, match=word):
        Functions.init(2, 2, key=jax.random.key(0), **change)
