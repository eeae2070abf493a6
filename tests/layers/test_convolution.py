"""Fast convolutions against plain ones, and plain ones against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem.layers.convolution import conv3x3, downsample4x4, plain_convolution


def random_image(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def same_with_gradients(fast, plain, *arguments, tolerance=2e-4):
    weight = random_image(np.random.default_rng(5), *jax.eval_shape(plain, *arguments).shape)

    def pulled(function):
        value, pull = jax.vjp(function, *arguments)
        return value, pull(weight)

    (made, ours), (expected, theirs) = (jax.jit(pulled, static_argnums=0)(f) for f in (fast, plain))
    np.testing.assert_allclose(made, expected, atol=tolerance, rtol=1e-4)
    for got, want in zip(ours, theirs, strict=True):
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
