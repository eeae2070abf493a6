"""The neural prior: Gaussian chains, autodiff, and the gradient of contrastive divergence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kaem.baselines import NeuralPrior

PRECISION = np.array([[2.0, 0.6], [0.6, 1.0]], np.float32)


class Quadratic(NeuralPrior):
    """A prior whose log-density is known: a normal of this precision."""

    def potential(self, z):
        return -0.5 * jnp.sum(z @ jnp.asarray(PRECISION) * z, axis=1), -z @ jnp.asarray(PRECISION)


def test_langevin_on_a_quadratic_energy_is_its_gaussian():
    """z' = z - eta P z + sqrt(2 eta) xi has covariance P^-1 (I - eta P / 2)^-1, exactly."""
    precision = PRECISION.astype(float)
    for step, noise in ((0.2, 1.0), (0.05, 1.0), (0.2, 0.5)):
        prior = Quadratic(
            2, key=jax.random.key(0), steps=int(20 / step), step_size=step, noise_scale=noise
        )
        z = prior.sample(jax.random.key(0), 20_000)
        law = noise**2 * np.linalg.inv(precision @ (np.eye(2) - step / 2 * precision))
        scale = np.sqrt(np.diag(law))
        n = len(z)  # 4.5 standard errors: a false alarm in 10^5 for each number
        assert (np.abs(np.mean(z, 0)) < 4.5 * scale / np.sqrt(n)).all()
        spread = np.sqrt((np.outer(scale, scale) ** 2 + law**2) / n)
        assert (np.abs(np.cov(np.asarray(z, float).T) - law) < 4.5 * spread).all()


def test_the_potential_is_the_tilted_normal_and_its_gradient():
    prior = NeuralPrior(5, key=jax.random.key(0), widths=(8, 8))
    z = jax.random.normal(jax.random.key(1), (7, 5))
    value, score = prior.potential(z)
    x = np.asarray(z, float)
    for weight, bias in list(zip(prior.weights, prior.biases, strict=True))[:-1]:
        x = x @ np.asarray(weight, float) + np.asarray(bias, float)
        x = x / (1 + np.exp(-x))
    f = (x @ np.asarray(prior.weights[-1], float))[:, 0]
    np.testing.assert_allclose(value, f - 0.5 * np.sum(np.asarray(z) ** 2, 1), rtol=1e-4, atol=1e-5)
    expected = jax.grad(lambda z: jnp.sum(prior.potential(z)[0]))(z)
    np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-5)


def test_the_energy_network_is_the_papers():
    prior = NeuralPrior(81, key=jax.random.key(0))
    assert [w.shape for w in prior.weights] == [(81, 200), (200, 200), (200, 1)]
    assert (prior.steps, prior.step_size, prior.noise_scale) == (60, 0.16, 1.0)


def test_contrastive_divergence_has_the_gradient_of_the_likelihood():
    """f = w z in one dimension: p is N(w, 1), and d/dw of the mean log-density is mean(z) - w."""
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(1,), steps=400, step_size=0.05)
    # One swish unit far in its linear part: f(z) = w (z + 50) to within e^-40.
    prior = eqx.tree_at(
        lambda p: (p.weights, p.biases),
        prior,
        (
            (jnp.ones((1, 1)), jnp.array([[0.4]])),
            (jnp.array([50.0]), jnp.zeros(1)),
        ),
    )
    z = jnp.full((20_000, 1), 1.5)
    grads = eqx.filter_grad(lambda p: p.mean_log_prob(z, jax.random.key(2)))(prior)
    # Estimated from 20,000 negatives of standard deviation 1.01: 4.5 errors.
    assert abs(float(grads.weights[1][0, 0]) - (1.5 - 0.4)) < 4.5 * 1.02 / np.sqrt(20_000)
