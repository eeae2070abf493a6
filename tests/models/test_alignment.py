"""Aligned models: folded exactly, ordered by influence, and the same to everything that uses them."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem
from kaem.loading import read
from kaem.priors import AlignedPrior

Q, SHAPE = 5, (8, 8, 3)


def model(mixing=True):
    a, b, c = jax.random.split(jax.random.key(0), 3)
    prior = kaem.MixturePrior(
        1, Q, key=a, basis="bspline", domain=(-6.0, 6.0), grid_size=12, cells=64
    )
    generator = kaem.CNN(Q, SHAPE, key=b, widths=(4,), hidden=(6,))
    encoder = kaem.Encoder(SHAPE, Q, key=c, widths=(4, 4), mixing=mixing)
    return kaem.KAEM(prior, generator, noise=0.2, encoder=encoder)


def correlated(n=2000):
    """Latents whose coordinates are neither independent nor normal."""
    rng = np.random.default_rng(0)
    sources = np.stack(
        [rng.laplace(size=n), rng.uniform(-1.7, 1.7, n), *rng.normal(size=(Q - 2, n))]
    )
    return (rng.normal(size=(Q, Q)) @ sources).T.astype(np.float32) + 0.3


@pytest.fixture(scope="module")
def aligned():
    return model().aligned(correlated())


def test_the_same_quantiles_make_the_same_images_after_folding(aligned):
    assert isinstance(aligned.prior, AlignedPrior)
    u = np.random.default_rng(1).random((64, Q)).astype(np.float32)
    before = aligned.decode(aligned.prior.inverse_cdf(u))
    folded = aligned.folded()
    assert not isinstance(folded.prior, AlignedPrior)
    np.testing.assert_allclose(folded.generate(u), before, atol=1e-5)
    assert folded.folded() is folded


def test_folding_keeps_the_density_of_what_is_made(aligned):
    """Latents s of the folded model stand for z = m + A s: their log-densities differ by log|det A|."""
    s = aligned.folded().prior.sample(jax.random.key(2), 50)
    z = aligned.prior.mixed(s)
    _, volume = np.linalg.slogdet(np.asarray(aligned.prior.mixing, float))
    inside = aligned.folded().prior.log_prob(s)
    np.testing.assert_allclose(aligned.prior.log_prob(z), inside - volume, atol=1e-3)


def test_the_prior_is_where_the_latents_are():
    z = correlated()
    plain, moved = model(), model().aligned(z)
    assert moved.prior.log_prob(z).mean() > plain.prior.log_prob(z).mean() + 1


def test_prepared_saved_and_loaded_models_are_folded(aligned, tmp_path):
    folded = aligned.finished()
    folded.save(tmp_path / "model.safetensors")
    for ready in (kaem.load(tmp_path / "model.safetensors"), aligned.prepared()):
        assert ready.with_quantiles("this") is ready
        assert ready.prior.cached is not None
        assert ready.generator.taps is not None
    x = np.random.default_rng(3).random((4, *SHAPE)).astype(np.float32)
    loaded = read(tmp_path / "model.safetensors")
    np.testing.assert_allclose(loaded.reconstruct(x), folded.reconstruct(x), atol=1e-6)


def test_the_encoder_follows_the_map(aligned):
    """What it says of an example decodes to the same data, whatever the coordinates are called."""
    x = np.random.default_rng(3).random((20, *SHAPE)).astype(np.float32)
    before = model()
    wide = eqx.tree_at(lambda m: m.prior.domain, before, jnp.array([[-60.0, 60.0]]))
    z = np.asarray(wide.posterior(x, jax.random.key(0)))
    for after in (aligned.folded(), aligned.folded().ordered()):
        unbent = eqx.tree_at(lambda m: m.prior.domain, after, jnp.array([[-60.0, 60.0]]))
        s = np.asarray(unbent.posterior(x, jax.random.key(0)))
        np.testing.assert_allclose(unbent.decode(s), wide.decode(z), atol=1e-4)
        # q(s|x) and q(z|x) differ by the volume of the map, the same for all examples.
        gap = np.asarray(unbent.encoded(x).log_prob(s) - wide.encoded(x).log_prob(z))
        assert np.ptp(gap) < 1e-3


def test_coordinates_are_ordered_by_what_they_change():
    """A generator in which coordinate q counts 5 - q times as much, in the wrong order."""
    plain = model(mixing=False)
    weights = np.array([1.0, 4.0, 2.0, 5.0, 3.0])
    row = np.random.default_rng(0).normal(size=plain.generator.projection.shape[1])
    rows = jnp.asarray(weights[:, None] * row, jnp.float32) / 20
    plain = eqx.tree_at(lambda m: m.generator.projection, plain, rows)
    ordered = plain.ordered()
    found = np.linalg.norm(ordered.generator.projection, axis=1)
    np.testing.assert_allclose(found / found[0] * 5, [5, 4, 3, 2, 1], rtol=1e-5)
    order = [3, 1, 4, 2, 0]
    u = np.random.default_rng(1).random((8, Q)).astype(np.float32)
    np.testing.assert_allclose(ordered.generate(u[:, order]), plain.generate(u), atol=1e-6)
    x = np.random.default_rng(3).random((4, *SHAPE)).astype(np.float32)
    means = np.asarray(plain.encoded(x).mean)
    np.testing.assert_allclose(ordered.encoded(x).mean, means[:, order], atol=1e-5)


def test_a_strictly_kolmogorov_arnold_generator_cannot_be_aligned():
    a, b = jax.random.split(jax.random.key(0))
    prior = kaem.MixturePrior(1, Q, key=a, basis="bspline", domain=(-6.0, 6.0))
    strict = kaem.KAEM(prior, kaem.KAN(Q, (9,), key=b, depth=1))
    with pytest.raises(kaem.UserError, match="first layer is"):
        strict.aligned(correlated())


def test_latents_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        model().aligned(np.zeros((100, 4)))


def test_latents_that_a_linear_layer_sums_are_summed():
    a, b = jax.random.split(jax.random.key(0))
    prior = kaem.UnivariatePrior(2, Q, key=a, grid_size=8)
    sums = kaem.KAEM(prior, kaem.CNN(Q, SHAPE, key=b, widths=(4,)), noise=0.2)
    z = np.stack([correlated() / 2, correlated() / 2], axis=2)
    moved = sums.aligned(z)
    assert moved.prior.shape == (Q,)
    assert moved.prior.log_prob(correlated()).mean() > -20


def test_an_encoder_for_another_number_of_latents_is_refused():
    wrong = kaem.Encoder(SHAPE, Q + 1, key=jax.random.key(0), widths=(4,))
    with pytest.raises(ValueError, match="describes 6 latents"):
        dataclasses.replace(model(), encoder=wrong)


@pytest.mark.parametrize("encoder", [True, False], ids=["encoder", "chains"])
def test_latents_of_an_aligned_model_are_in_its_own_coordinates(aligned, encoder):
    """The folded model finds s, this one z = m + A s, and both decode to the same images."""
    own = aligned if encoder else aligned.without_encoder()
    folded, key = own.folded(), jax.random.key(4)
    x = np.random.default_rng(3).random((6, *SHAPE)).astype(np.float32)
    z = own.posterior(x, key, proposals=64, steps=8)
    s = folded.posterior(x, key, proposals=64, steps=8)
    np.testing.assert_allclose(z, own.prior.mixed(s), atol=1e-5)
    np.testing.assert_allclose(own.decode(z), folded.decode(s), atol=1e-5)
    np.testing.assert_allclose(own.reconstruct(x, key), folded.reconstruct(x, key), atol=1e-5)


def test_an_aligned_model_is_ordered_and_measured_as_its_folded_twin(aligned):
    x = np.random.default_rng(3).random((2, *SHAPE)).astype(np.float32)
    u = np.random.default_rng(1).random((4, Q)).astype(np.float32)
    twins = (aligned, aligned.folded())
    for done in (
        lambda own: own.ordered().generate(u),
        lambda own: kaem.log_likelihood(own, x, key=jax.random.key(0), samples=32).value,
    ):
        np.testing.assert_array_equal(*(np.asarray(done(own)) for own in twins))


def test_what_an_aligned_model_cannot_say_it_refuses(aligned, tmp_path):
    with pytest.raises(kaem.UserError, match=r"ask `model.folded\(\)`"):
        aligned.encoded(np.zeros((1, *SHAPE), np.float32))
    for own in (aligned, aligned.without_encoder()):
        for learner in (own.usual_learner(), kaem.Langevin(steps=2)):
            with pytest.raises(kaem.UserError, match=r"train `model.folded\(\)`"):
                learner.check(own)
    with pytest.raises(kaem.UserError, match=r"give `model.folded\(\)`"):
        aligned.with_quantiles("this")
    with pytest.raises(ValueError, match=r"model.folded\(\).prior.save"):
        aligned.prior.save(tmp_path / "prior.safetensors")


def test_an_ordered_model_stays_as_it_is():
    """Whatever order its coordinates came in, and though some of them hardly differ."""
    base = model()
    rows = np.random.default_rng(2).normal(size=base.generator.projection.shape)
    rows[3] = 0.0
    base = eqx.tree_at(lambda m: m.generator.projection, base, jnp.asarray(rows, jnp.float32))
    once = base.ordered()
    other = base._by_influence(np.full((1, Q), 0.1)).ordered()
    for again in (once.ordered(), other):
        for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.any(once.generator.projection[-1])


def test_only_coordinates_without_latents_are_ordered():
    a, b = jax.random.split(jax.random.key(0))
    sums = kaem.KAEM(kaem.UnivariatePrior(2, Q, key=a), kaem.CNN(Q, SHAPE, key=b, widths=(4,)))
    with pytest.raises(kaem.UserError, match=r"shape \(Q,\), got \(5, 2\)"):
        sums.ordered()
