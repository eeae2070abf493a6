"""The DDPM baseline: its schedule and samplers in closed form, its UNet against a plain one.

Random tests use fixed keys and bounds of 5 standard errors: each would fail by chance once in
1.7 million.
"""

import dataclasses
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kaem.baselines import diffusion
from kaem.baselines.convolution import conv3x3, downsample4x4, plain_convolution
from kaem.baselines.diffusion import (
    CLASSES,
    DDPM,
    Denoising,
    ancestral,
    ancestral_coefficients,
    ddim,
    ddim_coefficients,
    diffuse,
    schedule,
)
from kaem.baselines.unet import GroupNorm, UNet, timestep_embedding
from kaem.generators.upsample import plain_upsample

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


def random_image(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def same_with_gradients(fast, plain, *arguments, tolerance=2e-4):
    made, pull = jax.vjp(fast, *arguments)
    expected, plain_pull = jax.vjp(plain, *arguments)
    np.testing.assert_allclose(made, expected, atol=tolerance, rtol=1e-4)
    weight = random_image(np.random.default_rng(5), *expected.shape)
    for got, want in zip(pull(weight), plain_pull(weight), strict=True):
        scale = float(jnp.max(jnp.abs(want)))
        np.testing.assert_allclose(got, want, atol=tolerance * max(1, scale), rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(1, 8, 8, 1), (3, 4, 6, 3), (5, 64, 64, 16), (2, 2, 2, 40)])
def test_conv3x3_equals_its_plain_twin_with_all_gradients(shape, stride):
    rng = np.random.default_rng(0)
    x, kernel = random_image(rng, *shape), random_image(rng, 3, 3, shape[-1], 24)
    same_with_gradients(
        lambda x, k: conv3x3(x, k, stride), lambda x, k: plain_convolution(x, k, stride), x, kernel
    )


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (1, 4)])
def test_conv3x3_of_odd_sizes(shape):
    rng = np.random.default_rng(0)
    x, kernel = random_image(rng, 3, *shape, 16), random_image(rng, 3, 3, 16, 16)
    same_with_gradients(conv3x3, lambda x, k: plain_convolution(x, k, 1), x, kernel)


@pytest.mark.parametrize("shape", [(1, 8, 8, 1), (3, 4, 6, 3), (5, 2, 4, 20)])
def test_downsample4x4_equals_its_plain_twin_with_all_gradients(shape):
    rng = np.random.default_rng(0)
    x, kernel = random_image(rng, *shape), random_image(rng, 4, 4, shape[-1], 6)
    same_with_gradients(downsample4x4, lambda x, k: plain_convolution(x, k, 2), x, kernel)


def test_the_plain_twin_is_the_definition_of_a_convolution():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 4, 6, 3))
    for size, stride in ((3, 1), (3, 2), (4, 2)):
        kernel = rng.normal(size=(size, size, 3, 5))
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        expected = np.stack(
            [
                [
                    np.einsum("nhwi,hwio->no", padded[:, r : r + size, c : c + size], kernel)
                    for c in range(0, 6, stride)
                ]
                for r in range(0, 4, stride)
            ]
        )
        made = plain_convolution(
            jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32), stride
        )
        np.testing.assert_allclose(made, expected.transpose(2, 0, 1, 3), atol=2e-5)


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (12, 6), (7, 7), (22, 2), (1, 1)])
def test_group_norm_equals_numpy(channels, groups):
    rng = np.random.default_rng(2)
    x = 3 + 2 * rng.normal(size=(3, 4, 6, channels))
    scale, offset = rng.normal(size=(2, channels))
    split = x.reshape(3, 4, 6, groups, channels // groups)
    mean = split.mean(axis=(1, 2, 4), keepdims=True)
    variance = split.var(axis=(1, 2, 4), keepdims=True)
    expected = ((split - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * scale + offset
    norm = GroupNorm(jnp.asarray(scale, jnp.float32), jnp.asarray(offset, jnp.float32))
    assert norm.groups == groups
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=1e-5)


def test_times_are_embedded_as_in_the_reference_implementation():
    t = np.array([0, 1, 17, 999])
    k = np.arange(8)
    angles = t[:, None] * np.exp(-np.log(10_000) * k / (8 - 1))
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(timestep_embedding(jnp.asarray(t), 16), expected, atol=1e-4)


def count(channels, time_dim, colours=3):
    """Parameters, line by line from the paper's table."""

    def dense(i, o):
        return i * o + o

    def conv(i, o, size=3):
        return size * size * i * o + o

    def block(i, o):  # two convolutions, two GroupNorms, the time's projection
        return conv(i, o) + conv(o, o) + 2 * 2 * o + dense(4 * time_dim, o)

    total = dense(time_dim, 4 * time_dim) + dense(4 * time_dim, 4 * time_dim)
    total += conv(colours, channels[0])
    for i, o in pairwise(channels):
        total += block(i, o) + conv(o, o)
    total += 2 * conv(channels[-1], channels[-1]) + 2 * channels[-1]
    for o, i in pairwise(channels):
        total += conv(i, i, size=4) + block(2 * i, o)
    return total + conv(channels[0], colours, size=1)


TABLES = {
    "tiny": ((8, 8, 1), (4, 6, 8), 8),
    "svhn": ((32, 32, 3), (32, 64, 128, 256), 128),
    "cifar10": ((32, 32, 3), (32, 64, 128, 256), 256),
    "celeba": ((64, 64, 3), (16, 32, 64, 128, 256), 512),
}


@pytest.mark.parametrize("name", TABLES)
def test_architectures_are_the_papers(name):
    shape, channels, time_dim = TABLES[name]
    network = UNet(shape, key=jax.random.key(0), channels=channels, time_dim=time_dim)
    leaves = jax.tree.leaves(eqx.filter(network, eqx.is_array))
    assert sum(a.size for a in leaves) == count(channels, time_dim, shape[-1])
    assert all(a.dtype == jnp.float32 for a in leaves)
    out = jax.eval_shape(network, jnp.zeros((2, *shape)), jnp.zeros(2, jnp.int32))
    assert out.shape == (2, *shape)


def awake(network, seed=1):
    """A network whose last layer, offsets and biases are no longer zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: a + jnp.asarray(0.1 * rng.normal(size=a.shape), jnp.float32), network
    )


def plain_unet(network, x, t):
    """The table once more, by the library's convolutions."""

    def conv(layer, x, stride=1):
        return plain_convolution(x, layer.kernel, stride) + layer.bias

    def norm(layer, x):
        channels = x.shape[-1]
        groups = next(g for g in range(8, 0, -1) if channels % g == 0)
        split = x.reshape(*x.shape[:3], groups, -1)
        split = jax.nn.standardize(split, axis=(1, 2, 4), epsilon=1e-5)
        return split.reshape(x.shape) * layer.scale + layer.offset

    def block(layer, x):
        x = jax.nn.gelu(norm(layer.first_norm, conv(layer.first, x)))
        x += (time @ layer.time.weight + layer.time.bias)[:, None, None, :]
        return jax.nn.gelu(norm(layer.second_norm, conv(layer.second, x)))

    time = timestep_embedding(t, network.time_dim)
    time = jax.nn.gelu(time @ network.embed[0].weight + network.embed[0].bias)
    time = time @ network.embed[1].weight + network.embed[1].bias
    x = jax.nn.gelu(conv(network.first, x))
    skips = []
    for down in network.downs:
        x = block(down.block, x)
        skips = [x, *skips]
        x = conv(down.halve, x, 2)
    middle = network.middle
    x = conv(middle.second, jax.nn.gelu(norm(middle.norm, conv(middle.first, x))))
    for up, skip in zip(network.ups, skips, strict=True):
        x = plain_upsample(x, up.kernel) + up.bias
        x = block(up.block, jnp.concatenate([x, skip], axis=-1))
    return jnp.einsum("nhwi,io->nhwo", x, network.last.weight) + network.last.bias


def test_the_network_equals_a_plain_one_with_all_gradients():
    network = awake(UNet((8, 12, 3), key=jax.random.key(0), channels=(16, 24), time_dim=8))
    rng = np.random.default_rng(3)
    x, target = random_image(rng, 3, 8, 12, 3), random_image(rng, 3, 8, 12, 3)
    t = jnp.array([0, 400, 999])

    def loss(network, x, forward):
        made = forward(network, x, t)
        return jnp.mean((made - target) ** 2), made

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    got, made = gradient(network, x, lambda network, x, t: network(x, t))
    want, expected = gradient(network, x, plain_unet)
    np.testing.assert_allclose(made, expected, atol=1e-4)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * float(jnp.max(jnp.abs(b))) + 1e-6)


def test_time_and_skips_matter_and_one_time_may_serve_all():
    network = awake(UNet((4, 4, 1), key=jax.random.key(0), channels=(8, 8), time_dim=8))
    denoise = jax.jit(lambda network, x, t: network(x, t))
    x = random_image(np.random.default_rng(4), 2, 4, 4, 1)
    made = denoise(network, x, jnp.array([5, 5]))
    np.testing.assert_allclose(made, denoise(network, x, jnp.asarray(5)), atol=1e-6)
    assert float(jnp.max(jnp.abs(made - denoise(network, x, jnp.array([800, 800]))))) > 0.01
    blind = eqx.tree_at(
        lambda n: n.ups[0].block.first.kernel, network, replace_fn=lambda k: k.at[:, :, 8:].set(0)
    )
    assert float(jnp.max(jnp.abs(made - denoise(blind, x, jnp.array([5, 5]))))) > 0.01


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 20, 3), (784,)])
def test_sizes_that_cannot_be_halved_are_refused_with_what_to_do(shape):
    with pytest.raises(ValueError, match=r"divisible by 8.*data\.size.*ddpm\.channels"):
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
        ({"channels": (8,)}, r"ddpm\.channels"),
        ({"time_dim": 7}, r"ddpm\.time_dim"),
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
    def check(value):
        if type(value) in CLASSES:
            for field in dataclasses.fields(value):
                check(getattr(value, field.name))
        elif isinstance(value, tuple):
            for item in value:
                check(item)
        else:
            assert eqx.is_array(value) or value is None or type(value) in (int, float, str)

    check(tiny())
