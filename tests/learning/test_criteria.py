"""What chains learn by: closed forms of a linear-Gaussian model, and refused arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from kaem import CNN, KAEM, Langevin, MixturePrior, Thermodynamic
from kaem.learning.criteria import maximum_likelihood, tempered, thermodynamic
from kaem.learning.schedules import power_law
from support.linear_gaussian import NOISE, A, Linear, X, linear_model, normal_prior


@pytest.mark.parametrize(
    ("schedule", "criterion"),
    [("cosine", "tempered"), ("balanced", "tempered"), ("fixed", "thermodynamic")],
)
def test_thermodynamic_training_estimates_log_p_of_x(schedule, criterion):
    model, key = linear_model(), jax.random.key(5)
    ladder = tuple(map(float, power_law(12, 2.0))) if schedule == "fixed" else None
    rungs = {"temperatures": 12, "schedule": schedule, "ladder": ladder, "criterion": criterion}
    posterior = Thermodynamic(40, 0.2, "mala", **rungs)
    x = jnp.tile(jnp.asarray(X, jnp.float32), (4000, 1))
    memory = posterior.memory(model, 4000, key)
    value, (info, memory) = jax.jit(lambda memory: posterior.objective(model, x, key, memory, 0.0))(
        memory
    )
    exact = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3)).logpdf(X)
    # A bias of 0.01 from 12 rungs, and Monte Carlo noise of 0.015.
    assert abs(float(info["log_marginal"]) - exact) < 0.07
    first = info["log_likelihood" if criterion == "tempered" else "log_marginal"]
    assert float(value) == pytest.approx(float(first + info["log_prior"]), abs=1e-3)
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
        (lambda: Thermodynamic(criterion="trapezoid"), "tempered, thermodynamic"),
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


@pytest.mark.parametrize(
    ("criterion", "rungs", "exponent", "expected"),
    [
        (tempered, 10, 0.5, 0.954),
        (thermodynamic, 10, 0.5, 0.646),
        (thermodynamic, 200, 1.0, 0.752),
    ],
    ids=["tempered", "the paper's last ladder", "many rungs"],
)
def test_where_learning_ends_with_exact_samples_of_every_power_posterior(
    criterion, rungs, exponent, expected
):
    """x = a z + noise of 0.3 and data of variance 1: a^2 + 0.3^2 = 1 has the greatest likelihood.

    Learning ends where the criterion's gradient is zero. That is a polynomial of degree two in x and in
    the samples, so two points a standard deviation from the mean of each law make its expectation exact.
    """
    t, noise = power_law(rungs, exponent), 0.3
    x, draws = (
        np.array(values, np.float32)[:, None] for values in ((1, 1, -1, -1), (1, -1, 1, -1))
    )
    prior = normal_prior(1, 256)

    @jax.jit
    def slope(a):
        precision = (1 + t * a**2 / noise**2)[:, None, None]
        levels = t[:, None, None] * a * x / noise**2 / precision + draws / jnp.sqrt(precision)

        def value(a):
            model = KAEM(prior, Linear(a.reshape(1, 1), (1,)), noise)
            return criterion(model, jnp.asarray(x), levels, t, jax.random.key(0))[0]

        return jax.grad(value)(a)

    at = optimize.brentq(lambda a: float(slope(jnp.float32(a))), 0.3, 1.5, xtol=1e-5)
    assert abs(at - expected) < 1e-3


def test_the_tempered_criterion_is_maximum_likelihood_with_the_paper_s_estimate_beside_it():
    prior = MixturePrior(3, 5, key=jax.random.key(0), cells=64)
    model = KAEM(prior, CNN(5, (8, 8, 1), key=jax.random.key(1), widths=(6,)), noise=0.4)
    x = jax.random.uniform(jax.random.key(2), (4, 8, 8, 1))
    levels = jax.random.normal(jax.random.key(3), (6, 4, 5))
    t, key = power_law(5, 1.7), jax.random.key(4)
    criteria = (
        lambda m: tempered(m, x, levels, t, key),
        lambda m: maximum_likelihood(m, x, levels[-1], key),
        lambda m: thermodynamic(m, x, levels, t, key),
    )

    def both(criterion):
        return eqx.filter_jit(
            eqx.filter_value_and_grad(lambda m: (criterion(m)[0], criterion(m)[1:]), has_aux=True)
        )(model)

    found, expected, papers = map(both, criteria)
    np.testing.assert_allclose(found[0][0], expected[0][0], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(b))) + 1e-6)
    for a, b in zip(found[0][1], papers[0][1], strict=True):  # E_k, the integral, the log-prior
        np.testing.assert_allclose(a, b, rtol=1e-4)
