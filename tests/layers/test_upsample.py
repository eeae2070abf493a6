"""The fast transposed convolution against the library's, and against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem.layers.upsample import (
    from_pixels,
    pixels,
    plain_upsample,
    prepare,
    spread,
    spread_matrix,
    upsample,
)


@pytest.mark.parametrize("shape", [(2, 2), (4, 6), (3, 5), (1, 8)])
def test_upsample_equals_its_plain_twin_with_all_gradients(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, *shape, 6)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(4, 4, 6, 5)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(3, 2 * shape[0], 2 * shape[1], 5)), jnp.float32)

    def fast(x, kernel):
        return upsample(x.transpose(1, 2, 0, 3), prepare(kernel)).transpose(2, 0, 1, 3)

    def pulled(function):
        value, pull = jax.vjp(function, x, kernel)
        return value, pull(weight)

    both = (jax.jit(pulled, static_argnums=0)(f) for f in (fast, plain_upsample))
    (made, ours), (expected, theirs) = both
    np.testing.assert_allclose(made, expected, atol=3e-5)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4)
    np.testing.assert_allclose(spread(x, spread_matrix(kernel)), expected, atol=3e-5)


def test_upsample_is_the_definition_of_a_transposed_convolution():
    """Against scatter-adding every input pixel's kernel, in NumPy."""
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(3, 4, 2)), rng.normal(size=(4, 4, 2, 3))
    big = np.zeros((2 * 3 + 2, 2 * 4 + 2, 3))
    for i in range(3):
        for j in range(4):
            # The library correlates with the dilated input, which flips the kernel here.
            patch = np.einsum("i,hwio->hwo", x[i, j], kernel[::-1, ::-1])
            big[2 * i : 2 * i + 4, 2 * j : 2 * j + 4] += patch
    got = upsample(jnp.asarray(x[:, :, None], jnp.float32), prepare(jnp.asarray(kernel)))
    np.testing.assert_allclose(got[:, :, 0], big[1:-1, 1:-1], atol=1e-5)


def test_planes_and_pixels_are_inverse():
    x = jax.random.normal(jax.random.key(0), (6, 10, 2, 3))
    np.testing.assert_array_equal(pixels(from_pixels(x), 3, 5), x)
