"""Traversals and influence of generators whose every effect is known in closed form."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import UserError
from kaem.baselines.vae import VAE, Encoder
from kaem.generators import CNN, KAN, AbstractGenerator
from kaem.interpret import influence as module
from kaem.interpret.curves import place_name
from kaem.interpret.influence import draw_influence, influence, readable
from kaem.interpret.traversal import draw_traversal, traversal
from kaem.model import KAEM
from kaem.priors import MixturePrior, UnivariatePrior

TRUNCATED = stats.truncnorm(-1.5, 1.5)
BRIGHT = (2, 1)  # the latent that moves the brightness
FEATURES = {
    "linear": lambda z: z,
    "square": lambda z: z**2,
    "product": lambda z: z * jnp.roll(z, 1, axis=1),
}


class Planted(AbstractGenerator):
    """Pixels 1/2 + weights applied to a feature of each latent: [Q, P] to an image."""

    weights: jax.Array  # [Q * P, X]
    q: int = eqx.field(static=True)
    feature: str = eqx.field(static=True, default="linear")
    data_shape: tuple[int, ...] = eqx.field(static=True, default=(4, 6, 1))

    def __call__(self, z):
        x = 0.5 + FEATURES[self.feature](z.reshape(1, -1)) @ self.weights
        return x.reshape(self.data_shape)


@cache
def reference_prior():
    """3 x 2 energies of zero: every latent is a normal truncated at 1.5."""
    prior = UnivariatePrior(2, 3, key=jax.random.key(0), activation=None)
    zero = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, replace_fn=jnp.zeros_like)
    return zero.refined().cache()


def planted(feature="linear", data_shape=(4, 6, 1)):
    """Latent (3, 2) moves all pixels alike; each other one moves two pixels apart, by less."""
    weights = np.zeros((6, 24), np.float32)
    for j in range(6):
        weights[j, 4 * j], weights[j, 4 * j + 1] = 0.02 * (j + 1), -0.02 * (j + 1)
    weights[5] = 0.15
    generator = Planted(jnp.asarray(weights), 3, feature, data_shape)
    return KAEM(reference_prior(), generator), weights.astype(np.float64)


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
    np.testing.assert_allclose(bright.brightness, 0.5 + 0.15 * z, atol=1e-6)
    np.testing.assert_allclose(bright.change, 0.15 * np.diff(z), atol=1e-6)

    moved = np.ptp(local.images, axis=0).ravel()
    np.testing.assert_allclose(moved, np.abs(weights[2]) * (z[-1] - z[0]), atol=1e-6)
    np.testing.assert_allclose(local.brightness, 0.5, atol=1e-6)
    for suffix in ("png", "svg"):
        draw_traversal([bright, local], tmp_path / f"t.{suffix}")
        assert (tmp_path / f"t.{suffix}").stat().st_size > 5000


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
    exact = readable(KAEM(prior, generator), "traversal", images=True).prior
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
