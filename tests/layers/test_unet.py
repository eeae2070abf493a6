"""The UNet against a plain one, its tables, and its parts against NumPy."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem.layers.convolution import plain_convolution
from kaem.layers.unet import GroupNorm, UNet, timestep_embedding
from kaem.layers.upsample import plain_upsample
from support.unet import awake


def random_image(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


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
