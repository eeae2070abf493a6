"""What chains learn by: closed forms of a linear-Gaussian model, and refused arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import CNN, KAEM, Langevin, MixturePrior, Thermodynamic
from kaem.learning.criteria import thermodynamic
from kaem.learning.schedules import power_law
from support.linear_gaussian import NOISE, A, X, linear_model


@pytest.mark.parametrize("schedule", ["cosine", "balanced", "fixed"])
def test_thermodynamic_training_estimates_log_p_of_x(schedule):
    model, key = linear_model(), jax.random.key(5)
    ladder = tuple(map(float, power_law(12, 2.0))) if schedule == "fixed" else None
    posterior = Thermodynamic(40, 0.2, "mala", temperatures=12, schedule=schedule, ladder=ladder)
    x = jnp.tile(jnp.asarray(X, jnp.float32), (4000, 1))
    memory = posterior.memory(model, 4000, key)
    value, (info, memory) = jax.jit(lambda memory: posterior.objective(model, x, key, memory, 0.0))(
        memory
    )
    exact = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3)).logpdf(X)
    # A bias of 0.01 from 12 rungs, and Monte Carlo noise of 0.015.
    assert abs(float(info["log_marginal"]) - exact) < 0.07
    assert float(value) == pytest.approx(float(info["log_marginal"] + info["log_prior"]), abs=1e-3)
    if schedule == "balanced":
        t = np.asarray(memory["ladder"])
        assert (np.diff(t) > 0).all()
        assert (t[0], t[-1]) == (0, 1)
    assert set(info) == set(posterior.info_names)


def test_the_gradient_is_that_of_the_criterion_at_its_samples():
    """Maximum likelihood at persistent latents that do not move: a closed form in A."""
    model = linear_model()
    posterior = Langevin(1, 1e-12, persistent=True)
    x = jnp.tile(jnp.asarray(X, jnp.float32), (5, 1))
    z = jax.random.normal(jax.random.key(0), (5, 2))

    def value(model):
        return posterior.objective(model, x, jax.random.key(1), {"chains": z}, 0.0)[0]

    got = eqx.filter_jit(eqx.filter_grad(value))(model).generator.matrix
    gap = np.asarray(x) - np.asarray(z) @ A.T
    np.testing.assert_allclose(got, gap.T @ np.asarray(z) / NOISE**2 / 5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Langevin(0), "steps >= 1"),
        (lambda: Langevin(5, -0.1), "step_size"),
        (lambda: Langevin(sampler="hmc"), "unknown sampler"),
        (lambda: Langevin(share=0.3), "for sampler 'sgld' only"),
        (lambda: Thermodynamic(temperatures=0), "at least one power posterior"),
        (lambda: Thermodynamic(sampler="sgld"), "'ula' or 'mala'"),
        (lambda: Thermodynamic(schedule="linear"), "schedule"),
        (
            lambda: Thermodynamic(temperatures=2, schedule="fixed", ladder=(0, 1, 0.5)),
            "increase strictly",
        ),
        (lambda: Thermodynamic(temperatures=3, schedule="fixed", ladder=(0, 0.5, 1)), "4 rungs"),
        (lambda: Thermodynamic(temperatures=2, ladder=(0, 0.5, 1)), "for schedule 'fixed'"),
        (lambda: Thermodynamic(temperatures=2, schedule="fixed"), "needs a ladder"),
    ],
)
def test_bad_posteriors_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_accumulated_thermodynamic_gradient_is_that_of_the_plain_sum():
    prior = MixturePrior(3, 5, key=jax.random.key(0), cells=64)
    model = KAEM(prior, CNN(5, (8, 8, 1), key=jax.random.key(1), widths=(6,)), noise=0.4)
    x = jax.random.uniform(jax.random.key(2), (4, 8, 8, 1))
    levels = jax.random.normal(jax.random.key(3), (6, 4, 5))
    t, key = power_law(5, 1.7), jax.random.key(4)

    def accumulated(model):
        value, each, integral, log_prior = thermodynamic(model, x, levels, t, key)
        return 0.5 * value, (each, integral, log_prior)  # a factor that the gradient must follow

    def plain_sum(model):
        each = jnp.stack([jnp.mean(model.log_likelihood(x, model.decode(z))) for z in levels])
        integral = jnp.sum((each[1:] + each[:-1]) / 2 * jnp.diff(t))
        log_prior = jnp.mean(model.prior.log_prob(levels[-1]))
        return 0.5 * (integral + log_prior), (each, integral, log_prior)

    found, expected = (
        eqx.filter_jit(eqx.filter_value_and_grad(f, has_aux=True))(model)
        for f in (accumulated, plain_sum)
    )
    ours, theirs = (jax.tree.leaves(pair) for pair in (found, expected))
    assert len(ours) == len(theirs) > 10
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4 * float(jnp.max(jnp.abs(b))) + 1e-6)
