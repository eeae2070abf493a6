"""Traversals and influence of generators whose every effect is known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem import UserError
from kaem.baselines.vae import VAE
from kaem.generators import CNN, GENERATORS, KAN
from kaem.interpret import influence as module
from kaem.interpret.curves import place_name
from kaem.interpret.figures.influence import draw_influence
from kaem.interpret.figures.traversal import draw_traversal, traversal
from kaem.interpret.influence import influence
from kaem.layers.encoder import Encoder
from kaem.models import KAEM
from kaem.priors import MixturePrior
from support.pictures import assert_drawn
from support.planted import BRIGHT, TRUNCATED, Planted, planted


def test_the_traversal_of_the_brightness_latent_changes_all_pixels_as_planted(tmp_path):
    model, weights = planted()
    bright, local = traversal(model, [BRIGHT, (1, 0)], points=7, low=0.05, high=0.95)
    u = np.linspace(0.05, 0.95, 7)
    z = TRUNCATED.ppf(u)
    np.testing.assert_allclose(bright.u, u)
    np.testing.assert_allclose(bright.z, z, atol=2e-6)
    np.testing.assert_allclose(bright.density, TRUNCATED.pdf(z), atol=1e-5)
    expected = np.broadcast_to((0.5 + 0.15 * z)[:, None, None, None], (7, 4, 6, 1))
    np.testing.assert_allclose(bright.images, expected, atol=1e-6)
    assert (np.diff(bright.images, axis=0) > 0).all()
    np.testing.assert_allclose(bright.images.mean(axis=(1, 2, 3)), 0.5 + 0.15 * z, atol=1e-6)
    np.testing.assert_allclose(bright.change, 0.15 * np.diff(z), atol=1e-6)

    moved = np.ptp(local.images, axis=0).ravel()
    np.testing.assert_allclose(moved, np.abs(weights[2]) * (z[-1] - z[0]), atol=1e-6)
    np.testing.assert_allclose(local.images.mean(axis=(1, 2, 3)), 0.5, atol=1e-6)
    for suffix in ("png", "svg"):
        draw_traversal([bright, local], tmp_path / f"t.{suffix}")
        assert_drawn(tmp_path / f"t.{suffix}", 7.0)


def test_the_others_stay_where_base_puts_them():
    model, weights = planted()
    base = np.random.default_rng(0).uniform(0.1, 0.9, (3, 2)).astype(np.float32)
    (found,) = traversal(model, [(0, 1)], points=3, base=base)
    z = np.tile(TRUNCATED.ppf(base).ravel(), (3, 1))
    z[:, 1] = TRUNCATED.ppf([0.01, 0.5, 0.99])
    np.testing.assert_allclose(found.images.reshape(3, -1), 0.5 + z @ weights, atol=2e-6)


def test_influence_of_a_linear_generator_is_analytic(tmp_path):
    model, weights = planted()
    found = influence(model, jax.random.key(0))
    squares = (weights**2).sum(axis=1).reshape(3, 2)
    shares = squares / squares.sum()
    assert found.places[0] == BRIGHT
    assert found.order.tolist() == np.argsort(-shares, axis=None).tolist()
    assert found.leading(2) == [(2, 1), (1, 1)]  # not (2, 0), which has more but the same q
    # Slopes are constant and effects orthogonal: what is left is the error of 1,024 stratified
    # draws in the variance, of standard deviation 9e-5 over keys. A false alarm is beyond 5 of it.
    np.testing.assert_allclose(found.variance, TRUNCATED.var() * squares.sum(), rtol=5e-4)
    np.testing.assert_allclose(found.jacobian, shares, rtol=5e-4)
    np.testing.assert_allclose(found.sweep, shares, rtol=5e-4)
    drawn = draw_influence(found, tmp_path / "i.png", count=4)
    assert drawn == found.places[:4]
    assert place_name(drawn[0]) == "q=3, p=2"
    assert_drawn(tmp_path / "i.png", 7.0)


def test_being_registered_changes_no_numbers(monkeypatch):
    """Only what a generator says of itself does: this one does not merely sum its latents."""
    model, _ = planted()
    before = influence(model, jax.random.key(0))
    monkeypatch.setitem(GENERATORS, "planted", Planted)
    np.testing.assert_array_equal(influence(model, jax.random.key(0)).jacobian, before.jacobian)


def test_sweeps_see_what_slopes_do_not():
    """Of x = z^2, Var(z^2) by scipy, but slopes say Var(z) E[4 z^2] = 4 Var(z)^2."""
    model, weights = planted("square")
    found = influence(model, jax.random.key(1))
    squares = (weights**2).sum(axis=1).reshape(3, 2)
    variance = TRUNCATED.moment(4) - TRUNCATED.var() ** 2
    # Over keys the standard deviations are 3e-4 of the variance, and 2e-3 of the slopes of 128
    # stratified draws: false alarms are beyond 6 of them.
    np.testing.assert_allclose(found.variance, variance * squares.sum(), rtol=2e-3)
    np.testing.assert_allclose(found.sweep, squares / squares.sum(), rtol=2e-3)
    local = 4 * TRUNCATED.var() ** 2 / variance
    np.testing.assert_allclose(found.jacobian, local * squares / squares.sum(), rtol=1.5e-2)


def test_shares_of_interacting_latents_sum_to_more_than_one():
    """x_j = w_j z_j z_{j-1}: every term belongs to two latents, so total effects sum to two."""
    model, _ = planted("product")
    found = influence(model, jax.random.key(2))
    # The standard deviation over keys is 3 %: a false alarm is beyond 4 of them, 6e-5.
    np.testing.assert_allclose(found.sweep.sum(), 2, rtol=0.12)


def test_priors_with_many_latents_are_swept_where_slopes_are_large(monkeypatch):
    monkeypatch.setattr(module, "MOST_SWEPT", 2)
    model, weights = planted()
    found = influence(model, jax.random.key(0))
    squares = (weights**2).sum(axis=1)
    assert found.order.tolist() == np.argsort(-squares).tolist()
    assert np.isfinite(found.sweep.ravel()[found.order]).tolist() == [True] * 2 + [False] * 4


@pytest.mark.parametrize("kind", ["kan", "cnn"])
def test_slopes_match_the_whole_jacobian(kind):
    """One forward slope for each row of latents, against reverse mode over all of them."""
    key = jax.random.key(3)
    shape = (3, 2) if kind == "kan" else (3,)
    if kind == "kan":
        generator = KAN(3, (5,), key=key, depth=1, output="identity")
        one = generator
    else:
        generator = CNN(3, (8, 8, 3), key=key, widths=(4,)).prepared()
        decode = generator.plain_decoder()

        def one(z):
            return decode(z[None])[0]

    z = jax.random.uniform(key, (6, *shape), minval=-1, maxval=1)
    jacobian = np.asarray(jax.jit(jax.vmap(jax.jacrev(one)))(z)).reshape(6, -1, *shape)
    expected = (jacobian.astype(np.float64) ** 2).sum(axis=1).mean(axis=0)
    found = module._squared_slopes(generator, [z[:3], z[3:]], shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_quantiles_are_those_of_the_densities_whatever_the_sampler():
    """Picking a component first, u to z goes up and down; here it increases, and F inverts it."""
    prior = MixturePrior(3, 2, key=jax.random.key(4), inverse_transform="components", cells=1024)
    generator = Planted(jnp.ones((2, 24)), 2)
    exact = KAEM(prior, generator).readable("traversal", images=True).prior
    u = jnp.linspace(0.01, 0.99, 50)[:, None] * jnp.ones(2)
    z = exact.inverse_cdf(u)
    assert (np.diff(z, axis=0) > 0).all()
    np.testing.assert_allclose(exact.cdf(z), u, atol=1e-5)


def test_what_cannot_be_shown_is_said():
    model, _ = planted(data_shape=(24,))
    with pytest.raises(UserError, match="shows images"):
        traversal(model, [BRIGHT])
    assert influence(model, jax.random.key(0)).places[0] == BRIGHT
    encoder = Encoder((24,), 3, key=jax.random.key(0), widths=())
    rival = VAE(encoder, KAN(3, (24,), key=jax.random.key(1), depth=1))
    with pytest.raises(UserError, match=r"needs a KAEM.*got a VAE"):
        influence(rival, jax.random.key(0))
    model, _ = planted()
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        traversal(model, [(3, 0)])
    with pytest.raises(ValueError, match="low < high"):
        traversal(model, [BRIGHT], low=0.9, high=0.1)
    with pytest.raises(ValueError, match="needs a latent"):
        traversal(model, [])
    with pytest.raises(ValueError, match="quantile for each latent"):
        traversal(model, [BRIGHT], base=jnp.zeros(3))
    with pytest.raises(ValueError, match="2 quantiles"):
        influence(model, jax.random.key(0), quantiles=1)
