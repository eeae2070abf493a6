"""log p(x) of a linear-Gaussian KAEM with an encoder, where posterior and evidence are known."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import KAEM, DenseEncoder, Encoder
from kaem.generators import AbstractGenerator
from kaem.learning import Encoded
from kaem.metrics import log_likelihood
from support.linear_gaussian import NOISE, A, linear_model, normal_prior

EVIDENCE = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3))
COVARIANCE = np.linalg.inv(np.eye(2) + A.T @ A / NOISE**2)


def data(n):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)) @ A.T + NOISE * rng.normal(size=(n, 3))
    return x.astype(np.float32)


def model(shift=0.0, width=1.0):
    """The linear-Gaussian model with an encoder that knows its posterior, or is off by so much."""
    mixing = np.linalg.cholesky(COVARIANCE)
    means = np.linalg.solve(mixing, COVARIANCE @ A.T / NOISE**2).T
    encoder = Encoder((3,), 2, key=jax.random.key(0), widths=(), mixing=True)
    values = (
        np.concatenate([means, np.zeros((3, 2))], axis=1),
        np.concatenate([np.full(2, shift), np.full(2, 2 * np.log(width))]),
        mixing,
    )
    encoder = eqx.tree_at(
        lambda e: (e.head, e.head_bias, e.mixing),
        encoder,
        tuple(jnp.asarray(value, jnp.float32) for value in values),
    )
    return dataclasses.replace(linear_model(), encoder=encoder)


def bound(own, x, keys=8192):
    def objective(key):
        return Encoded().objective(own, jnp.asarray(x), key, {}, 0.5)[0]

    drawn = jax.random.split(jax.random.key(1), keys)
    values = np.asarray(jax.jit(lambda keys: jax.lax.map(objective, keys))(drawn), float)
    return values.mean(), values.std() / keys**0.5


def test_the_bound_is_below_the_evidence_and_close_where_the_encoder_is_right():
    x = data(64)
    exact = EVIDENCE.logpdf(x).mean()
    value, error = bound(model(), x)
    assert error < 2e-3
    assert exact - 0.01 < value < exact + 4 * error


def test_the_bound_is_off_by_the_divergence_of_the_encoder():
    x, shift, width = data(64), 0.5, 0.6
    exact = EVIDENCE.logpdf(x).mean()
    value, error = bound(model(shift, width), x)
    divergence = 2 * 0.5 * (width**2 - 1 - 2 * np.log(width) + shift**2)
    assert abs(exact - divergence - value) < 5 * error + 0.01


@pytest.mark.parametrize(
    ("shift", "width"), [(0.0, 1.0), (1.5, 0.4)], ids=["right", "narrow and shifted"]
)
@pytest.mark.parametrize("method", ["importance", "ais"])
def test_estimates_are_within_their_errors(method, shift, width):
    """Three errors and a little; the mean of 32 independent examples within four of its own."""
    x = data(32)
    exact = EVIDENCE.logpdf(x)
    found = log_likelihood(model(shift, width), x, key=jax.random.key(2), method=method)
    assert np.isfinite(found.error).all()
    assert found.error.max() < 1
    gaps = found.value - exact
    assert np.mean(np.abs(gaps) < 3 * found.error + 0.01) > 0.9
    assert abs(gaps.mean()) < 4 * found.monte_carlo_error + 0.01


def test_the_same_key_gives_the_same_estimate():
    x = data(5)
    first, second = (log_likelihood(model(), x, key=jax.random.key(3)) for _ in range(2))
    assert np.array_equal(first.value, second.value)
    assert np.array_equal(first.error, second.error)


class Magnitude(AbstractGenerator):
    """x = |z|, which has the same posterior on either side of zero."""

    data_shape: tuple[int, ...] = eqx.field(static=True, default=(1,))

    def __call__(self, z):
        return jnp.abs(z.reshape(1))


def test_annealing_finds_modes_that_the_encoder_does_not_know():
    """The encoder knows of z = x alone; by symmetry, p(x) is then log 2 above what it explains."""
    encoder = DenseEncoder((1,), 1, key=jax.random.key(0), widths=())
    noise, x = 0.1, np.linspace(0.4, 1.6, 24, dtype=np.float32)[:, None]
    weights = (jnp.array([[1.0, 0.0]]), jnp.array([0.0, 2 * np.log(noise)]))
    encoder = eqx.tree_at(lambda e: (e.head, e.head_bias), encoder, weights)
    own = KAEM(normal_prior(1, 256), Magnitude(), noise, encoder=encoder)
    found = log_likelihood(own, x, key=jax.random.key(4), method="ais")
    z = np.linspace(-6, 6, 20_001)
    joint = stats.norm.pdf(z) * stats.norm.pdf(x, np.abs(z), noise)
    gaps = found.value - np.log(np.trapezoid(joint, z, axis=1))
    assert found.error.max() < 0.3
    assert np.mean(np.abs(gaps) < 3 * found.error) > 0.9
    assert abs(gaps.mean()) < 4 * found.monte_carlo_error
