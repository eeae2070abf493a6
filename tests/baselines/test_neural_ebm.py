"""The neural latent energy model: it learns, reconstructs, and is saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kaem
from kaem import CNN, Langevin
from kaem.baselines import VAE, Encoder, NeuralEBM, NeuralPrior
from kaem.training import Adam, TrainingDiverged
from support.affine import Affine, B, W, data


@pytest.mark.slow
def test_a_neural_ebm_learns_a_shifted_latent_distribution():
    """Data whose latents are far from the normal: the trained prior moves to where they are."""
    rng = np.random.default_rng(0)
    z = np.where(rng.random((2_000, 1)) < 0.5, -1.2, 1.6) + 0.2 * rng.normal(size=(2_000, 1))
    x = np.concatenate([z, -z], axis=1).astype(np.float32)
    generator = Affine(jnp.array([[1.0], [-1.0]]), jnp.zeros(2), (2,))
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(32, 32), steps=100, step_size=0.02)
    model = NeuralEBM(prior, generator, noise=0.3)
    model, history = kaem.fit(
        model,
        x,
        learner=Langevin(20, 0.02),
        key=jax.random.key(0),
        steps=600,
        batch_size=100,
        optimiser=Adam(prior_rate=3e-3, generator_rate=0.0),
    )
    drawn = np.asarray(model.prior.sample(jax.random.key(5), 4_000))[:, 0]
    start = np.asarray(prior.sample(jax.random.key(5), 4_000))[:, 0]
    before, after = (stats.wasserstein_distance(s, z[:, 0]) for s in (start, drawn))
    assert after < 0.5 * before
    # Two modes: less mass between them than a normal has there.
    assert np.mean(np.abs(drawn - 0.2) < 0.4) < 0.6 * np.mean(np.abs(start - 0.2) < 0.4)
    assert history[-1]["lost"] == 0.0


@pytest.mark.slow
def test_prior_chains_that_diverge_are_named():
    generator = Affine(jnp.ones((2, 1)), jnp.zeros(2), (2,))
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(8,), steps=60, step_size=2.5)
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    with pytest.raises(TrainingDiverged, match=r"prior\.step_size"):
        kaem.fit(
            NeuralEBM(prior, generator),
            x,
            learner=Langevin(5, 0.002),
            key=jax.random.key(0),
            steps=20,
        )


def test_reconstructions_resemble_their_data():
    generator = Affine(jnp.asarray(W, jnp.float32), jnp.asarray(B, jnp.float32), (3,))
    prior = NeuralPrior(2, key=jax.random.key(0), widths=(8,))
    model, x = NeuralEBM(prior, generator, noise=0.2), jnp.asarray(data(200))
    made = model.reconstruct(x, jax.random.key(1), steps=200)
    start = model.decode(prior.sample(jax.random.key(2), 200))
    assert np.mean((made - x) ** 2) < 0.3 * np.mean((start - x) ** 2)


def test_parts_that_do_not_fit_are_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="takes 5 latent coordinates, but the prior has 4"):
        NeuralEBM(NeuralPrior(4, key=key), CNN(5, (8, 8, 1), key=key, widths=(4,)))
    with pytest.raises(ValueError, match=r"divisible by 16.*data\.size"):
        Encoder((28, 28, 1), 4, key=key)
    with pytest.raises(ValueError, match="positive widths"):
        NeuralPrior(4, key=key, widths=())
    with pytest.raises(ValueError, match="steps >= 1"):
        NeuralPrior(4, key=key, steps=0)


@pytest.mark.parametrize("kind", ["vae", "neural-ebm"])
def test_a_saved_model_is_the_same_model(kind, tmp_path):
    key = jax.random.key(0)
    generator = CNN(4, (8, 8, 1), key=key, widths=(8,))
    if kind == "vae":
        model = VAE(Encoder((8, 8, 1), 4, key=key, widths=(4, 4)), generator, noise=0.2)
    else:
        model = NeuralEBM(NeuralPrior(4, key=key, widths=(8,)), generator, noise=0.2)
    model.save(tmp_path / "m.safetensors")
    again = kaem.load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    model = model.prepared()  # as a model that was read is
    np.testing.assert_array_equal(again.sample(key, 3), model.sample(key, 3))
    x = model.sample(jax.random.key(1), 2)
    np.testing.assert_array_equal(again.reconstruct(x, key), model.reconstruct(x, key))
