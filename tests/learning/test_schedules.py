"""Ladders of temperatures, and the trapezoid over them."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem.learning.criteria import trapezoid_weights
from kaem.learning.schedules import balanced, checked_ladder, cosine_exponent, power_law
from support.linear_gaussian import NOISE, A, X, power_posterior


def test_schedules_are_the_papers():
    np.testing.assert_allclose(power_law(4, 2.0), [0, 1 / 16, 1 / 4, 9 / 16, 1])
    progress = np.array([0.0, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(
        cosine_exponent(progress), [2, 2 - 1.5 * 0.5 * (1 - 2**-0.5), 1.25, 0.5], rtol=1e-6
    )
    # One whole cycle, then half of one: p returns to its start at 2/3 of training.
    np.testing.assert_allclose(cosine_exponent(np.array([1 / 3, 2 / 3]), 2, 0.5, 1), [0.5, 2])
    # Rejections concentrated in one gap draw the rungs there.
    t = balanced(jnp.linspace(0, 1, 5), jnp.array([0.0, 0.9, 0.0, 0.0]))
    assert float(t[1]) > 0.25
    assert float(t[3]) < 0.5
    np.testing.assert_allclose(
        balanced(jnp.linspace(0, 1, 5), jnp.full(4, 0.3)), jnp.linspace(0, 1, 5), atol=1e-6
    )


@pytest.mark.parametrize("ladder", [[0, 0.5, 0.4, 1], [0.1, 1], [0, 0.5], [0, 0, 1], [0, 1.2, 1]])
def test_impossible_ladders_are_refused(ladder):
    with pytest.raises(ValueError, match="increase strictly from 0 to 1"):
        checked_ladder(ladder)


def test_the_trapezoid_is_numpys_and_its_bias_shrinks_with_the_square():
    t = np.array([0, 0.1, 0.5, 1.0])
    values = np.array([-9.0, -4.0, -2.0, -1.0])
    np.testing.assert_allclose(trapezoid_weights(jnp.asarray(t)) @ values, np.trapezoid(values, t))

    def expected(t):
        mean, covariance, _ = power_posterior(t)
        return -0.5 * (np.sum((X - A @ mean) ** 2) + np.trace(A @ covariance @ A.T)) / NOISE**2

    marginal = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3)).logpdf(X)
    exact = marginal + 1.5 * np.log(2 * np.pi * NOISE**2)
    bias = []
    for n in (8, 16, 32):
        rungs = np.asarray(power_law(n, 2.0), float)
        bias.append(trapezoid_weights(rungs) @ np.array([expected(v) for v in rungs]) - exact)
    np.testing.assert_allclose(np.array(bias[:-1]) / bias[1:], 4, rtol=0.15)
