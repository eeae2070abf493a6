"""What chains are told of a batch of posteriors: against autodiff and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import CNN, KAEM, Langevin, MixturePrior
from kaem.bench import plain
from kaem.posterior import SGLD
from kaem.posterior.evaluator import evaluator


@pytest.mark.slow
def test_sgld_steps_shrink_and_its_noisy_gradients_are_unbiased():
    sampler = SGLD(decay=0.5)
    rates = [float(sampler.rate(0.1, jnp.int32(k))) for k in (0, 3, 99)]
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.01], rtol=1e-6)
    model, x, z = tiny_model()
    evaluate = evaluator(model, x, model.prior.potential())
    full = evaluate(z).likelihood_score
    keys = jax.random.split(jax.random.key(0), 2000)
    seen = jax.jit(jax.vmap(lambda k: evaluate(z, key=k, share=0.5).likelihood_score))(keys)
    error = np.asarray(jnp.mean(seen, axis=0) - full) / np.asarray(jnp.std(seen, 0)) * 2000**0.5
    assert np.abs(error).max() < 4.8  # 15 numbers: a false alarm in 40,000


def tiny_model(prior_seed=0):
    prior = MixturePrior(2, key=jax.random.key(prior_seed), cells=128)
    generator = CNN(5, (8, 8, 3), key=jax.random.key(1), widths=(4,))
    x = jax.random.uniform(jax.random.key(2), (3, 8, 8, 3))
    return KAEM(prior, generator, 0.3), x, jax.random.normal(jax.random.key(3), (3, 5))


def test_evaluate_is_the_log_joint_and_its_gradient():
    model, x, z = tiny_model()
    decode = model.generator.plain_decoder()

    def log_likelihood(z):
        density = stats.norm.logpdf if isinstance(z, np.ndarray) else jax.scipy.stats.norm.logpdf
        return density(x - decode(z), scale=0.3).sum(axis=(1, 2, 3))

    got = jax.jit(lambda z: evaluator(model, x, model.prior.potential())(z))(z)
    np.testing.assert_allclose(got.log_likelihood, log_likelihood(z), rtol=1e-5)
    expected = jax.jit(jax.grad(lambda z: jnp.sum(log_likelihood(z))))(z)
    np.testing.assert_allclose(got.likelihood_score, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got.log_prior, model.prior.log_prob(z), atol=1e-3)
    np.testing.assert_allclose(got.prior_score, model.prior.score(z), atol=3e-2)


def test_the_fast_hot_loop_walks_with_its_plain_twin():
    model, x, z = tiny_model()
    key = jax.random.key(7)
    fast, _ = jax.jit(lambda z: Langevin(10).sample(model, x, z, key))(z)
    slow = jax.jit(lambda z: plain.langevin(model, x, z, key, 10, 0.01))(z)
    np.testing.assert_allclose(fast, slow, atol=2e-3)  # the prior's table is the difference
