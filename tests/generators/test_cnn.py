"""The CNN generator: its tables, its residuals, its files."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from kaem import CNN, KAEM, MixturePrior, UserError, load

TABLES = {  # data shape, widths, parameters counted from the paper's tables
    "svhn": ((32, 32, 3), (128, 64, 32), 469_731),
    "cifar10": ((32, 32, 3), (256, 128, 64), 1_791_427),
    "celeba": ((64, 64, 3), (256, 128, 64, 32), 1_822_691),
}


@pytest.mark.parametrize("name", TABLES)
def test_architectures_are_the_papers(name):
    shape, widths, parameters = TABLES[name]
    generator = CNN(81, shape, key=jax.random.key(0), widths=widths)
    assert sum(a.size for a in jax.tree.leaves(eqx.filter(generator, eqx.is_array))) == parameters
    assert generator.smallest() == (2, 2, widths[0])
    assert [k.shape for k in generator.kernels] == [
        (4, 4, i, o) for i, o in zip((widths[0], *widths), (*widths, 3), strict=True)
    ]


@pytest.mark.parametrize(("shape", "hidden"), [((8, 8, 3), ()), ((12, 4, 1), (7, 9))])
def test_residuals_are_data_minus_images_for_every_chain(shape, hidden):
    generator = CNN(5, shape, key=jax.random.key(0), widths=(6,), hidden=hidden)
    x = jax.random.uniform(jax.random.key(1), (3, *shape))
    z = jax.random.normal(jax.random.key(2), (2 * 3, 5))

    def squares(z):
        gaps = generator.residuals(x)(z)
        return sum(jnp.sum(g**2, axis=(*range(g.ndim - 2), g.ndim - 1)) for g in gaps)

    def plain(z):
        made = generator.plain_decoder()(z).reshape(2, *x.shape)
        return jnp.sum((x - made) ** 2, axis=(2, 3, 4)).ravel()

    def both(f):
        """Values, and the gradient of their sum."""
        return jax.jit(lambda z: (f(z), jax.grad(lambda z: jnp.sum(f(z)))(z)))(z)

    (got, slope), (want, its_slope) = both(squares), both(plain)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(slope, its_slope, atol=1e-4)
    made, expected = jax.jit(lambda z: (generator.decoder()(z), generator.plain_decoder()(z)))(z)
    np.testing.assert_allclose(made, expected, atol=1e-6)


def test_hidden_layers_come_between_latents_and_the_smallest_image():
    generator = CNN(5, (8, 4, 1), key=jax.random.key(0), widths=(3,), slope=0.2, hidden=(7, 9))
    assert [w.shape for w in (generator.projection, *generator.dense)] == [(5, 7), (7, 9), (9, 6)]
    biases = jax.random.normal(jax.random.key(1), (7 + 9 + 6,))
    first, *rest = jnp.split(biases, (7, 16))
    generator = eqx.tree_at(
        lambda g: (g.projection_bias, g.dense_biases), generator, (first, tuple(rest))
    )
    x = z = np.random.default_rng(0).normal(size=(4, 5))
    for weight, bias in zip((generator.projection, *generator.dense), (first, *rest), strict=True):
        x = x @ np.asarray(weight) + np.asarray(bias)
        x = np.where(x > 0, x, 0.2 * x)
    np.testing.assert_allclose(generator.project(jnp.asarray(z, jnp.float32)), x, atol=1e-5)
    with pytest.raises(ValueError, match="positive sizes"):
        CNN(5, (8, 4, 1), key=jax.random.key(0), widths=(3,), hidden=(0,))


def test_noise_enters_before_the_output_activation():
    generator = CNN(5, (4, 4, 1), key=jax.random.key(0), widths=(3,))
    z, noise = jnp.zeros((2, 5)), jnp.ones((2, 16))
    decode = jax.jit(generator.decoder())
    logits = jnp.log(decode(z)) - jnp.log1p(-decode(z))
    expected = jax.nn.sigmoid(logits + 1)
    np.testing.assert_allclose(decode(z, noise), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "widths", "message"),
    [
        ((28, 28, 1), (8, 8), "divisible by 8"),
        ((32, 32), (8,), "H, W, C"),
        ((32, 32, 3), (), "widths"),
    ],
)
def test_impossible_images_are_refused(shape, widths, message):
    with pytest.raises(ValueError, match=message):
        CNN(5, shape, key=jax.random.key(0), widths=widths)


def test_a_mixture_model_samples_steers_and_survives_saving(tmp_path):
    prior = MixturePrior(2, key=jax.random.key(0), cells=64)
    model = KAEM(prior, CNN(5, (8, 8, 3), key=jax.random.key(1), widths=(4,)), noise=0.3)
    model.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    u = jax.random.uniform(jax.random.key(2), (4, 2, 5))
    assert again.generate(u).shape == (4, 2, 8, 8, 3)
    np.testing.assert_array_equal(again.generate(u), model.prepared().generate(u))
    samples = again.sample(jax.random.key(3), 7)
    assert samples.shape == (7, 8, 8, 3)
    assert float(samples.min()) > 0
    assert float(samples.max()) < 1


def test_prepared_weights_decode_the_same_and_are_dropped_for_training():
    generator = CNN(5, (16, 16, 3), key=jax.random.key(1), widths=(8, 4))
    z = jax.random.normal(jax.random.key(2), (6, 5))
    prepared = generator.prepared()
    assert prepared.taps is not None
    decode = eqx.filter_jit(lambda generator, z: generator.decoder()(z))
    np.testing.assert_allclose(decode(prepared, z), decode(generator, z), atol=1e-6)
    # Weights changed behind its back: what was prepared is stale, and `trainable` knows.
    changed = eqx.tree_at(lambda g: g.kernels, prepared, tuple(2 * k for k in generator.kernels))
    fresh = changed.trainable()
    assert fresh.taps is None
    plain = eqx.filter_jit(lambda generator, z: generator.plain_decoder()(z))
    np.testing.assert_allclose(decode(fresh, z), plain(fresh, z), atol=1e-5)


def test_files_from_before_a_field_existed_are_read(tmp_path):
    model = KAEM(
        MixturePrior(2, key=jax.random.key(0), cells=64),
        CNN(5, (8, 8, 1), key=jax.random.key(1), widths=(4,)),
    )
    path = tmp_path / "m.safetensors"
    model.save(path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = {n: v for n, v in file.metadata().items() if not n.startswith("digest")}
    structure = json.loads(header["structure"])
    del structure["fields"]["generator"]["fields"]["taps"]
    save_file(arrays, path, header | {"structure": json.dumps(structure)})
    key = jax.random.key(3)
    np.testing.assert_array_equal(load(path).sample(key, 3), model.prepared().sample(key, 3))
    del structure["fields"]["generator"]["fields"]["slope"]
    save_file(arrays, path, header | {"structure": json.dumps(structure)})
    with pytest.raises(UserError, match="CNN has fields"):
        load(path)
