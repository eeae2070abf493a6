"""The DDPM baseline: its schedule and samplers in closed form.

Random tests use fixed keys and bounds of 5 standard errors: each would fail by chance once in
1.7 million.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kaem import serialisation
from kaem.baselines import diffusion
from kaem.baselines.diffusion import (
    DDPM,
    ancestral,
    ancestral_coefficients,
    ddim,
    ddim_coefficients,
    schedule,
)
from kaem.learning import Denoising
from kaem.learning.denoising import diffuse
from support.unet import awake

BETAS = np.linspace(1e-4, 2e-2, 1000)


ALPHA_BAR = np.exp(np.cumsum(np.log1p(-BETAS)))


MEAN = np.array([0.3, -0.5])


COVARIANCE = np.array([[0.5, 0.3], [0.3, 0.4]])


def gaussian_denoiser(x, t):
    r"""The optimal one: $E[\epsilon | x_t]$ where $x_0$ is Gaussian."""
    a = jnp.asarray(ALPHA_BAR, jnp.float32)[t]
    precision = jnp.linalg.inv(a * COVARIANCE.astype(np.float32) + (1 - a) * jnp.eye(2))
    return jnp.sqrt(1 - a) * (x - jnp.sqrt(a) * MEAN.astype(np.float32)) @ precision


def noise_and_keys(n, seed=0):
    key = jax.random.key(seed)
    return jax.random.normal(key, (n, 2)), jax.random.split(jax.random.fold_in(key, 1), n)


def test_the_marginals_are_those_of_the_chain_of_single_steps():
    rng = np.random.default_rng(0)
    n, start = 20_000, 0.7
    x = np.full(n, start)
    alpha_bar = schedule().alpha_bar
    for t, beta in enumerate(BETAS):
        x = np.sqrt(1 - beta) * x + np.sqrt(beta) * rng.normal(size=n)
        if t in (0, 10, 100, 300, 999):
            mean, variance = np.sqrt(alpha_bar[t]) * start, 1 - alpha_bar[t]
            assert abs(x.mean() - mean) < 5 * np.sqrt(variance / n)
            assert abs(x.var() - variance) < 5 * variance * np.sqrt(2 / n)


def test_diffuse_has_the_mean_and_the_scale_of_the_closed_form():
    t = jnp.array([0, 17, 500, 999])
    ones, zeros = jnp.ones((4, 2, 2, 1)), jnp.zeros((4, 2, 2, 1))
    signal = diffuse(schedule(), ones, t, zeros)
    scale = diffuse(schedule(), zeros, t, ones)
    expected = ALPHA_BAR[np.asarray(t)][:, None, None, None] * np.ones((4, 2, 2, 1))
    np.testing.assert_allclose(signal, np.sqrt(expected), rtol=1e-6)
    np.testing.assert_allclose(scale, np.sqrt(1 - expected), rtol=1e-6)


@pytest.mark.parametrize("steps", [None, 100, 7, 1])
def test_ancestral_steps_are_bayes_rule_for_one_step_of_the_chain(steps):
    """The law of $x_{t'}$ given $x_t$ and $x_0$, by adding precisions."""
    times = schedule(steps=steps)
    table = ancestral_coefficients(times)
    assert times.times[-1] == 999
    for i in range(1, len(times.times)):
        before, after = ALPHA_BAR[times.times[i - 1]], ALPHA_BAR[times.times[i]]
        alpha = after / before
        precision = 1 / (1 - before) + alpha / (1 - alpha)
        np.testing.assert_allclose(table.scale[i] ** 2, 1 / precision, rtol=1e-9)
        np.testing.assert_allclose(
            table.of_x[i], np.sqrt(alpha) / (1 - alpha) / precision, rtol=1e-9
        )
        np.testing.assert_allclose(
            table.of_guess[i], np.sqrt(before) / (1 - before) / precision, rtol=1e-9
        )
    assert (table.of_guess[0], table.of_x[0], table.scale[0]) == (1, 0, 0)


@pytest.mark.parametrize("steps", [None, 50])
def test_ddim_with_eta_one_is_ancestral_sampling(steps):
    times = schedule(steps=steps)
    for a, b in zip(ancestral_coefficients(times), ddim_coefficients(times, 1.0), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


def test_as_many_sampling_steps_as_timesteps_are_the_full_schedule():
    full, respaced = schedule(1000), schedule(1000, steps=1000)
    np.testing.assert_array_equal(full.times, np.arange(1000))
    np.testing.assert_array_equal(full.times, respaced.times)
    np.testing.assert_array_equal(full.alpha_bar, respaced.alpha_bar)
    np.testing.assert_allclose(full.alpha_bar, ALPHA_BAR, rtol=1e-12)


def exact_moments(table):
    """Of a sampler's results with that denoiser: its steps are affine, so they have a recursion."""
    mean, covariance, eye = np.zeros(2), np.eye(2), np.eye(2)
    for time, _, _, of_guess, of_x, scale in reversed(list(zip(*table, strict=True))):
        a = ALPHA_BAR[time]
        gain = np.sqrt(a) * COVARIANCE @ np.linalg.inv(a * COVARIANCE + (1 - a) * eye)
        step = of_guess * gain + of_x * eye  # of x_t; E[x_0 | x_t] = m + gain (x_t - sqrt(a) m)
        mean = step @ mean + of_guess * (MEAN - np.sqrt(a) * gain @ MEAN)
        covariance = step @ covariance @ step.T + scale**2 * eye
    return mean, covariance


def worst_z(x, mean, covariance):
    """The largest of the standard scores of the sample's means, variances and covariance."""
    x, n, variances = np.asarray(x, np.float64), len(x), np.diag(covariance)
    spread = np.outer(variances, variances) + covariance**2
    scores = (np.cov(x.T) - covariance) / np.sqrt(spread / n)
    return max(np.abs(scores).max(), np.abs((x.mean(axis=0) - mean) / np.sqrt(variances / n)).max())


def test_ancestral_sampling_with_all_steps_recovers_a_gaussian():
    noise, keys = noise_and_keys(4000)
    x = ancestral(gaussian_denoiser, schedule(), noise, keys, clip=False)
    # The posterior's variances are a little small for data that is not one point: the covariance
    # lacks 0.006, half a standard error here.
    mean, covariance = exact_moments(ancestral_coefficients(schedule()))
    np.testing.assert_allclose(mean, MEAN, atol=1e-3)
    np.testing.assert_allclose(covariance, COVARIANCE, atol=6e-3)
    assert worst_z(x, MEAN, COVARIANCE) < 5.5
    assert worst_z(x, mean, covariance) < 5


@pytest.mark.parametrize(("steps", "eta", "bias"), [(50, 0, 0.045), (100, 0, 0.025), (50, 1, 0.09)])
def test_fewer_steps_recover_it_up_to_their_discretisation(steps, eta, bias):
    noise, keys = noise_and_keys(4000, seed=3)
    times = schedule(steps=steps)
    x = ddim(gaussian_denoiser, times, noise, keys, eta=eta, clip=False)
    mean, covariance = exact_moments(ddim_coefficients(times, eta))
    np.testing.assert_allclose(mean, MEAN, atol=2e-3)
    np.testing.assert_allclose(covariance, COVARIANCE, atol=bias)
    assert worst_z(x, mean, covariance) < 5


def test_ddim_follows_the_probability_flow_of_a_gaussian():
    r"""Which maps $x_T$ to $m + S^{1/2}(\bar\alpha S + (1-\bar\alpha)I)^{-1/2}(x_T - \sqrt{\bar\alpha}m)$."""
    noise, keys = noise_and_keys(64)
    values, vectors = np.linalg.eigh(COVARIANCE)
    a = ALPHA_BAR[-1]
    flow = vectors * np.sqrt(values / (a * values + 1 - a)) @ vectors.T
    expected = MEAN + (np.asarray(noise) - np.sqrt(a) * MEAN) @ flow
    errors = {}
    for steps in (50, 100, 200):
        made = ddim(gaussian_denoiser, schedule(steps=steps), noise, keys, clip=False)
        errors[steps] = np.abs(made - expected).max()
    assert errors[50] < 0.1  # discretisation: data spread over 4
    assert errors[100] < 0.05
    # Of first order: half the step, half the error.
    assert errors[50] / errors[100] == pytest.approx(2, rel=0.2)
    assert errors[100] / errors[200] == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("sampler", [ancestral, ddim])
def test_guesses_are_clipped(sampler):
    noise, keys = noise_and_keys(8)
    wild = sampler(lambda x, t: -100 * jnp.sign(noise), schedule(steps=5), noise, keys)
    np.testing.assert_array_equal(wild, jnp.sign(noise))


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 20, 3), (784,)])
def test_sizes_that_cannot_be_halved_are_refused_with_what_to_do(shape):
    with pytest.raises(ValueError, match=r"divisible by 8.*data\.size.*model\.channels"):
        DDPM(shape, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "euler"}, "ancestral, ddim"),
        ({"timesteps": 0}, "timesteps >= 1"),
        ({"beta_end": 1.0}, "beta_end < 1"),
        ({"sampling_steps": 1001}, "between 1 and timesteps = 1000"),
        ({"sampling_steps": 0}, "between 1 and timesteps = 1000"),
        ({"eta": 2.0}, "eta"),
        ({"channels": (8,)}, r"model\.channels"),
        ({"time_dim": 7}, r"model\.time_dim"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DDPM((8, 8, 1), key=jax.random.key(0), **settings)


def tiny(**settings):
    settings = {"channels": (8, 8), "time_dim": 8, "timesteps": 10, "beta_end": 0.5} | settings
    model = DDPM((4, 4, 1), key=jax.random.key(0), **settings)
    return eqx.tree_at(lambda m: m.network, model, awake(model.network))


@pytest.mark.parametrize("settings", [{}, {"sampler": "ddim", "sampling_steps": 4}])
def test_samples_are_deterministic_images(settings):
    model = tiny(**settings)
    x = model.sample(jax.random.key(1), 6)
    assert x.shape == (6, 4, 4, 1)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert float(x.std()) > 0.05
    jax.clear_caches()
    np.testing.assert_array_equal(x, tiny(**settings).sample(jax.random.key(1), 6))
    assert float(jnp.max(jnp.abs(x - model.sample(jax.random.key(2), 6)))) > 0.05


def test_an_image_is_the_same_whatever_is_drawn_with_it(monkeypatch):
    model, keys = tiny(), jax.random.split(jax.random.key(1), 7)
    together = model._denoised(keys)
    monkeypatch.setattr(diffusion, "_TOGETHER", 3)
    np.testing.assert_allclose(model._denoised(keys), together, atol=1e-4)


@pytest.mark.slow
def test_the_first_loss_is_the_variance_of_noise_and_learning_lowers_it():
    """A new network predicts no noise at all; of constant images it can learn nearly all."""
    model = DDPM((8, 8, 1), key=jax.random.key(0), channels=(8, 16), time_dim=16)
    learning = Denoising()
    assert learning.memory(model, 10, jax.random.key(0)) == {}
    x = jnp.full((64, 8, 8, 1), 0.75)
    optimiser = optax.adam(3e-3)
    state = optimiser.init(model)

    @jax.jit
    def update(model, state, key):
        def loss(model):
            value, (info, memory) = learning.objective(model, x, key, {}, 0.0)
            return -value, (info, memory)

        (value, (info, memory)), gradient = jax.value_and_grad(loss, has_aux=True)(model)
        assert set(info) == set(learning.info_names)
        assert memory == {}
        changes, state = optimiser.update(gradient, state)
        return optax.apply_updates(model, changes), state, info["denoising_error"], value

    losses = []
    for i in range(100):
        model, state, error, value = update(model, state, jax.random.key(i))
        assert error == value
        losses.append(float(error))
    assert abs(losses[0] - 1) < 5 * np.sqrt(2 / x.size)
    assert np.mean(losses[-20:]) < 0.3
    assert learning.diagnosis({"denoising_error": losses[-1]}) is None


def test_the_tree_holds_only_what_a_model_file_can_describe():
    known = set(serialisation._known().values())

    def check(value):
        if type(value) in known:
            for field in dataclasses.fields(value):
                check(getattr(value, field.name))
        elif isinstance(value, tuple):
            for item in value:
                check(item)
        else:
            assert eqx.is_array(value) or value is None or type(value) in (int, float, str)

    check(tiny())
