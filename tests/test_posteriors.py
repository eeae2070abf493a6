"""Chains against analytic posteriors: linear-Gaussian models, two modes, power posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from kaem import CNN, KAEM, Langevin, MixturePrior, Thermodynamic, UnivariatePrior
from kaem.bench import plain
from kaem.objectives import (
    balanced,
    checked_ladder,
    cosine_exponent,
    power_law,
    thermodynamic,
    trapezoid_weights,
)
from kaem.posterior import MALA, SGLD, ULA, Population, swap
from kaem.posterior.chains import evaluator
from kaem.posterior.samplers import Evaluation, reflected
from linear_gaussian import Linear, normal_prior

# z ~ N(0, I), x | z ~ N(A z, s^2): the posterior is Gaussian.
A = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
X = np.array([0.7, -1.1, 0.4])
NOISE = 0.6


def gaussian(z):
    """`evaluate` of the linear-Gaussian model."""
    gap = X - z @ A.T
    likelihood = -0.5 * jnp.sum(gap**2, -1) / NOISE**2
    return Evaluation(likelihood, gap @ A / NOISE**2, -0.5 * jnp.sum(z**2, -1), -z)


def power_posterior(t=1.0):
    precision = np.eye(2) + t * A.T @ A / NOISE**2
    covariance = np.linalg.inv(precision)
    return covariance @ (t * A.T @ X) / NOISE**2, covariance, precision


def run(sampler, evaluate, z, steps, key, t=1.0):
    @jax.jit
    def loop(z):
        def step(i, carry):
            state, accepted = carry
            state, info = sampler.step(evaluate, state, t, jax.random.fold_in(key, i))
            return state, accepted + info.acceptance

        return jax.lax.fori_loop(0, steps, step, (sampler.init(evaluate, z), 0.0))

    state, accepted = loop(z)
    return np.asarray(state.z, float), float(accepted) / steps


def assert_moments(z, mean, covariance, sigmas=4.5):
    """Sample moments of independent Gaussian chains: a false alarm in 10^5 for each number."""
    n = len(z)
    scale = np.sqrt(np.diag(covariance))
    assert (np.abs(z.mean(0) - mean) < sigmas * scale / np.sqrt(n)).all()
    spread = np.sqrt((np.outer(scale, scale) ** 2 + covariance**2) / n)
    assert (np.abs(np.cov(z.T) - covariance) < sigmas * spread).all()


def test_ula_has_its_own_known_law_at_a_large_step_and_the_posterior_at_a_small_one():
    mean, covariance, precision = power_posterior()
    start = jnp.zeros((20_000, 2))
    step = 0.2
    # z' = z - eta P (z - m) + sqrt(2 eta) xi has covariance P^-1 (I - eta P / 2)^-1.
    biased = np.linalg.inv(precision @ (np.eye(2) - step / 2 * precision))
    z, _ = run(ULA(step), gaussian, start, 150, jax.random.key(0))
    assert_moments(z, mean, biased)
    with pytest.raises(AssertionError):
        assert_moments(z, mean, covariance)
    z, _ = run(ULA(0.003), gaussian, start, 2500, jax.random.key(1))
    assert_moments(z, mean, covariance)


def test_mala_has_no_bias_from_its_step():
    mean, covariance, _ = power_posterior()
    z, acceptance = run(MALA(0.2), gaussian, jnp.zeros((20_000, 2)), 150, jax.random.key(2))
    assert_moments(z, mean, covariance)
    assert 0.3 < acceptance < 0.99


def test_a_chain_without_a_batch_axis_is_a_chain():
    """One chain on its own walks as it does in a batch: rejections leave all of its state alone."""
    sampler, key = MALA(1.2), jax.random.key(0)  # so large that most proposals are rejected

    def walk(z):
        def step(i, carry):
            state, total = carry
            state, info = sampler.step(gaussian, state, 1.0, jax.random.fold_in(key, i))
            return state, total + info.acceptance

        return jax.lax.fori_loop(0, 300, step, (sampler.init(gaussian, z), 0.0))

    state, accepted = jax.jit(walk)(jnp.zeros(2))
    assert 3 < float(accepted) < 297
    for kept, fresh in zip(state.here, gaussian(state.z), strict=True):
        np.testing.assert_allclose(kept, fresh, atol=1e-5)
    assert int(state.moves) == 300


def test_samplers_follow_the_temperature():
    mean, covariance, _ = power_posterior(0.3)
    z, _ = run(MALA(0.3), gaussian, jnp.zeros((20_000, 2)), 150, jax.random.key(3), t=0.3)
    assert_moments(z, mean, covariance)


@pytest.mark.slow
def test_sgld_steps_shrink_and_its_noisy_gradients_are_unbiased():
    sampler = SGLD(0.1, decay=0.5)
    rates = [float(sampler.rate(jnp.int32(k))) for k in (0, 3, 99)]
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.01], rtol=1e-6)
    model, x, z = tiny_model()
    evaluate = evaluator(model, x, model.prior.potential())
    full = evaluate(z).likelihood_score
    keys = jax.random.split(jax.random.key(0), 2000)
    seen = jax.jit(jax.vmap(lambda k: evaluate(z, key=k, share=0.5).likelihood_score))(keys)
    error = np.asarray(jnp.mean(seen, axis=0) - full) / np.asarray(jnp.std(seen, 0)) * 2000**0.5
    assert np.abs(error).max() < 4.8  # 15 numbers: a false alarm in 40,000


@pytest.mark.slow
def test_sgld_comes_to_the_posterior():
    mean, covariance, _ = power_posterior()
    z, _ = run(SGLD(0.05), gaussian, jnp.zeros((20_000, 2)), 1500, jax.random.key(4))
    assert_moments(z, mean, covariance, sigmas=6)  # the last step, 0.0045, still has its bias


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

    got = evaluator(model, x, model.prior.potential())(z)
    np.testing.assert_allclose(got.log_likelihood, log_likelihood(z), rtol=1e-5)
    expected = jax.grad(lambda z: jnp.sum(log_likelihood(z)))(z)
    np.testing.assert_allclose(got.likelihood_score, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got.log_prior, model.prior.log_prob(z), atol=1e-3)
    np.testing.assert_allclose(got.prior_score, model.prior.score(z), atol=3e-2)


def test_the_fast_hot_loop_walks_with_its_plain_twin():
    model, x, z = tiny_model()
    key = jax.random.key(7)
    fast, _ = jax.jit(lambda z: Langevin(10).sample(model, x, z, key))(z)
    slow = jax.jit(lambda z: plain.langevin(model, x, z, key, 10, 0.01))(z)
    np.testing.assert_allclose(fast, slow, atol=2e-3)  # the prior's table is the difference


# Two modes: likelihood peaks at -2 and 2 under a N(0, 1) prior.
def two_modes(z):
    def log_likelihood(z):
        left = jnp.log(0.55) - 0.5 * ((z[..., 0] + 2) / 0.25) ** 2
        right = jnp.log(0.45) - 0.5 * ((z[..., 0] - 1.8) / 0.25) ** 2
        return jnp.logaddexp(left, right)

    value, pull = jax.vjp(log_likelihood, z)
    (slope,) = pull(jnp.ones_like(value))
    return Evaluation(value, slope, -0.5 * jnp.sum(z**2, -1), -z)


def right_share():
    def density(z):
        left = 0.55 * np.exp(-0.5 * ((z + 2) / 0.25) ** 2)
        right = 0.45 * np.exp(-0.5 * ((z - 1.8) / 0.25) ** 2)
        return (left + right) * stats.norm.pdf(z)

    pieces = [integrate.quad(density, a, b)[0] for a, b in ((-6, 0), (0, 6))]
    return pieces[1] / sum(pieces)


@pytest.mark.slow
def test_a_single_chain_is_stuck_where_a_population_finds_both_modes():
    n, key = 4000, jax.random.key(0)
    z, _ = run(ULA(0.01), two_modes, jnp.full((n, 1), -2.0), 400, key)
    assert np.mean(z > 0) < 0.001

    population, t = Population(ULA(0.01)), power_law(8, 3.0)

    def draw(key):
        return jax.random.normal(key, (n, 1))

    @jax.jit
    def loop(z):
        def step(i, carry):
            state, trips, rates = carry
            state, info = population.step(two_modes, state, t, jax.random.fold_in(key, i), draw)
            return state, trips + info.trips, rates + info.swapped / 200

        first = population.init(two_modes, z)
        return jax.lax.fori_loop(0, 400, step, (first, 0.0, jnp.zeros(8)))

    state, trips, rates = loop(jnp.full((8, n, 1), -2.0))
    found = float(jnp.mean(state.chains.z[-1] > 0))
    share = right_share()
    assert 0.3 < share < 0.7
    assert abs(found / share - 1) < 0.05
    assert float(trips) > 1  # every example got several visitors from the prior
    assert float(rates.min()) > 0.2


def test_swaps_leave_every_power_posterior_invariant():
    """Exact draws at each level, exchanged many times, are still exact draws at each level."""
    n, t = 40_000, jnp.array([0.0, 0.15, 0.5, 1.0])
    key = jax.random.key(0)
    laws = [power_posterior(float(v)) for v in t]
    z = jnp.stack(
        [
            jax.random.multivariate_normal(jax.random.fold_in(key, k), jnp.asarray(m), jnp.asarray(c), (n,))
            for k, (m, c, _) in enumerate(laws)
        ]
    )  # fmt: skip
    moved = jnp.zeros((3, n))
    for i in range(6):
        (z,), accepted = swap(
            jax.random.fold_in(key, 100 + i), (z,), gaussian(z).log_likelihood, t, jnp.int32(i % 2)
        )
        moved += accepted
    for level, (mean, covariance, _) in enumerate(laws):
        assert_moments(np.asarray(z[level], float), mean, covariance)
    assert (np.asarray(moved.mean(1)) > 0.5).all()  # and they did exchange


def test_a_swap_changes_only_those_who_accepted():
    z = jax.random.normal(jax.random.key(0), (5, 300, 2))
    t = power_law(4, 2.0)
    for parity in (0, 1):
        (new, marks), accepted = swap(
            jax.random.key(1),
            (z, jnp.broadcast_to(jnp.arange(5)[:, None], (5, 300))),
            gaussian(z).log_likelihood,
            t,
            jnp.int32(parity),
        )
        accepted, marks = np.asarray(accepted), np.asarray(marks)
        assert not accepted[1 - parity :: 2].any()
        assert accepted[parity::2].any()
        assert not accepted[parity::2].all()
        for k in range(4):
            took, stayed = accepted[k], ~accepted[k]
            assert (marks[k][took] == k + 1).all()
            assert (marks[k + 1][took] == k).all()
            if k % 2 == parity:
                np.testing.assert_array_equal(new[k][stayed], z[k][stayed])
                np.testing.assert_array_equal(new[k + 1][stayed], z[k + 1][stayed])


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


def linear_model():
    return KAEM(normal_prior(2, 256), Linear(jnp.asarray(A, jnp.float32)), NOISE)


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

    got = eqx.filter_grad(value)(model).generator.matrix
    gap = np.asarray(x) - np.asarray(z) @ A.T
    np.testing.assert_allclose(got, gap.T @ np.asarray(z) / NOISE**2 / 5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Langevin(0), "steps >= 1"),
        (lambda: Langevin(5, -0.1), "step_size"),
        (lambda: Langevin(kind="hmc"), "unknown sampler"),
        (lambda: Langevin(share=0.3), "for kind 'sgld' only"),
        (lambda: Thermodynamic(temperatures=0), "at least one power posterior"),
        (lambda: Thermodynamic(kind="sgld"), "'ula' or 'mala'"),
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


def flat_prior(reference="uniform"):
    prior = UnivariatePrior(1, 4, key=jax.random.key(0), reference=reference, activation=None)
    zero = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, replace_fn=jnp.zeros_like)
    slope = lambda z: jnp.asarray(np.linspace(-1, 1, 21)[None, None] * z, jnp.float32)  # noqa: E731
    return eqx.tree_at(
        lambda p: p.energies.basis.coefficients, zero, jnp.tile(slope(0.4), (4, 1, 1))
    )


@pytest.mark.parametrize(
    ("sampler", "steps"), [(ULA(0.005), 400), (SGLD(0.01), 400), (MALA(0.02), 200)]
)
def test_chains_stay_in_the_domain_and_have_its_density(sampler, steps):
    """No likelihood, a flat reference: nothing but the border keeps a chain in."""
    prior = flat_prior()
    potential = prior.potential()

    def evaluate(z):
        log_p, slope = potential(z)
        zeros = jnp.zeros(z.shape[:-2])
        return Evaluation(zeros, jnp.zeros_like(z), jnp.sum(log_p, axis=(-2, -1)), slope)

    within = eqx.tree_at(
        lambda s: s.domain, sampler, prior.bounds, is_leaf=lambda leaf: leaf is None
    )
    z, _ = run(within, evaluate, prior.sample(jax.random.key(1), 2000), steps, jax.random.key(2))
    assert ((z >= 0) & (z <= 1)).all()
    # Uniform quantiles of 4 x 2,000 independent chains: false alarm 1e-4; ULA's bias is far below it.
    u = np.asarray(prior.refined().cdf(jnp.asarray(z, jnp.float32)), float).ravel()
    assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_reflecting_is_folding_at_both_ends():
    domain = (jnp.array([-1.0]), jnp.array([2.0]))
    z = jnp.array([[-1.0], [2.0], [0.3], [-1.5], [2.25], [5.5], [-7.5], [jnp.nan]])
    folded = np.asarray(reflected(z, domain))[:, 0]
    np.testing.assert_allclose(folded, [-1, 2, 0.3, -0.5, 1.75, -0.5, -0.5, np.nan], atol=1e-6)
    assert reflected(z, None) is z


@pytest.mark.parametrize("prior", [flat_prior(), normal_prior(3, 64)], ids=["flat", "normal"])
def test_all_log_densities_agree_outside_the_domain(prior):
    """-inf by every way of asking; weights of zero do not count."""
    inside = prior.sample(jax.random.key(0), 3)
    outside = inside.at[1].set(100.0)
    weights = jnp.array([0.5, 0.0, 0.5])

    def expected(z, weights):
        last = jnp.moveaxis(z, 0, -1)
        return prior.expected_log_prob(last, weights, prior.log_normaliser())

    assert np.isneginf(prior.log_prob(outside)[1])
    assert np.isneginf(prior.mean_log_prob(outside))
    assert np.isneginf(jnp.sum(prior.potential()(outside)[0][1]))
    np.testing.assert_allclose(expected(outside, weights), expected(inside, weights), rtol=1e-5)
