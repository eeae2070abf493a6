"""The integer model against exact integers, SciPy and the float model; and what is said of its quality."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kaem import CNN, KAEM, KAN, MixturePrior, UnivariatePrior, UserError
from kaem.baselines import VAE
from kaem.export import quantise
from kaem.export.integer.layers import Dense, Scaling, Upsample, product
from kaem.export.integer.quality import psnr, quality, ssim
from kaem.export.integer.stream import quantiles
from kaem.export.integer.tables import Tables, _segments, kolmogorov_smirnov, quantise_prior
from kaem.layers.encoder import Encoder
from kaem.layers.upsample import plain_upsample

EVERY = np.arange(1 << 16)[:, None]
KINDS = [(linear, addressing) for linear in (True, False) for addressing in ("uniform", "tails")]


@pytest.fixture(scope="module")
def gaussian():
    """A prior without energies: its densities are normal, cut off at its domain."""
    prior = UnivariatePrior(1, 1, key=jax.random.key(0), domain=(-4.0, 4.0), activation=None)
    flat = jnp.zeros_like(prior.energies.basis.coefficients)
    prior = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, flat)
    return prior.with_cells(512).cache(), stats.truncnorm(-4, 4)


@pytest.fixture(scope="module")
def prior():
    made = UnivariatePrior(2, 3, key=jax.random.key(0), cells=256, amplitude=60.0)
    return made.cache()


@pytest.fixture(scope="module")
def kan(prior):
    generator = KAN(3, (14, 12, 1), key=jax.random.key(1), amplitude=10.0, grid_size=8)
    last = generator.layers[-1]  # ten times as strong: pixels then reach from black to white
    strong = jax.tree.map(lambda leaf: 10 * leaf, (last.basis.coefficients, last.base_weight))
    return KAEM(
        prior,
        eqx.tree_at(
            lambda g: (g.layers[-1].basis.coefficients, g.layers[-1].base_weight), generator, strong
        ),
    )


@pytest.fixture(scope="module")
def kan_in_integers(kan):
    return quantise(kan)


@pytest.fixture(scope="module")
def cnn():
    prior = MixturePrior(2, 5, key=jax.random.key(0), cells=64, domain=(-4.0, 4.0)).cache()
    return KAEM(prior, CNN(5, (12, 16, 3), key=jax.random.key(1), widths=(8,), slope=0.2))


@pytest.fixture(scope="module")
def cnn_in_integers(cnn):
    return quantise(cnn)


@pytest.fixture(scope="module")
def deep(cnn):
    how = {"widths": (8,), "slope": 0.2, "hidden": (24, 32)}
    return KAEM(cnn.prior, CNN(5, (12, 16, 3), key=jax.random.key(2), **how))


@pytest.fixture(scope="module")
def deep_in_integers(deep):
    return quantise(deep)


# Tables.


def read_slowly(tables, latent, u):
    """One word, in Python's integers, by the definition in words."""
    segment = tables.segments[0]
    for other in tables.segments[1:]:
        if other.start <= u < other.start + 2**other.span:
            segment = other
    size = 2**segment.span // 2**segment.cells
    cell, within = divmod(u - segment.start, size)
    row = [int(word) for word in tables.words[latent]]
    left = row[segment.offset + cell]
    if not tables.interpolate or size == 1:
        return left
    right = row[segment.offset + cell + 1]
    return (left * (size - within) + right * within + size // 2) // size


@pytest.mark.parametrize(("linear", "addressing"), KINDS)
def test_reading_a_table_equals_exact_integers(linear, addressing):
    rng = np.random.default_rng(0)
    segments = _segments(64, linear, addressing)
    length = segments[-1].offset + 2 ** segments[-1].cells + linear
    words = np.sort(rng.integers(0, 1 << 16, (2, length)), axis=1)
    tables = Tables(words, np.zeros(2), np.ones(2), (2,), 16, linear, segments)
    borders = [s.start + side for s in segments for side in (0, 2**s.span - 1, 2**s.span)]
    u = np.concatenate([rng.integers(0, 1 << 16, 3000), [b for b in borders if b < 1 << 16]])
    found = tables.look_up(np.stack([u, u[::-1]], axis=1))
    expected = [
        [read_slowly(tables, 0, int(a)), read_slowly(tables, 1, int(b))]
        for a, b in zip(u, u[::-1], strict=True)
    ]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("linear", "addressing"), KINDS)
def test_tables_hold_the_quantiles_of_a_normal_distribution(gaussian, linear, addressing):
    prior, normal = gaussian
    tables = quantise_prior(prior, interpolate=linear, addressing=addressing)
    z = tables.latents(tables.look_up(EVERY))[:, 0]
    assert (np.diff(z) >= 0).all()
    u = (EVERY[:, 0] + 0.5) / (1 << 16)
    bulk = (u > 0.01) & (u < 0.99)
    density = normal.pdf(normal.ppf(0.01))
    word = 8 / ((1 << 16) - 1)
    # Half a cell, or chords and half a step of u; tail-refined tables have half of the cells there.
    cell = (1 if addressing == "uniform" else 2) / 1024
    chord = cell**2 / 8 * 2.33 / density**2 + 0.5 / (1 << 16) / density
    bound = word + (chord if linear else 0.55 * cell / density)
    assert np.abs(z - normal.ppf(u))[bulk].max() <= bound


@pytest.mark.parametrize(("linear", "addressing"), KINDS)
def test_the_distance_is_that_of_scipy_and_within_the_limit(gaussian, linear, addressing):
    prior, normal = gaussian
    tables = quantise_prior(prior, interpolate=linear, addressing=addressing)
    found = kolmogorov_smirnov(prior, tables)
    z = tables.latents(tables.look_up(EVERY))[:, 0]
    expected = stats.ks_1samp(z, normal.cdf, method="asymp").statistic
    assert found[0, 0] == pytest.approx(expected, abs=2e-6)
    assert found[0, 0] <= (1e-3 if addressing == "uniform" or linear else 2e-3)


@pytest.mark.parametrize("linear", [True, False])
def test_learned_densities_stay_within_the_limit(prior, linear):
    tables = quantise_prior(prior, interpolate=linear)
    found = kolmogorov_smirnov(prior, tables)
    assert found.shape == prior.shape
    assert 0 < found.max() <= 1e-3
    assert tables.bytes == 6 * (1024 + linear) * 2
    coarse = quantise_prior(prior, entries=64, bits=8, interpolate=linear)
    assert kolmogorov_smirnov(prior, coarse).max() > 2 * found.max()
    assert coarse.bytes == 6 * (64 + linear)


def test_refined_tails_are_better_tails(gaussian):
    prior, normal = gaussian
    u = np.concatenate([np.arange(32), np.arange((1 << 16) - 32, 1 << 16)])[:, None]
    expected = normal.ppf((u[:, 0] + 0.5) / (1 << 16))
    error = {}
    for addressing in ("uniform", "tails"):
        tables = quantise_prior(prior, interpolate=False, addressing=addressing)
        error[addressing] = np.abs(tables.latents(tables.look_up(u))[:, 0] - expected).mean()
    assert error["tails"] < 0.3 * error["uniform"]


# Layers.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=4),
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=8),
    st.sampled_from([None, 0.01, 0.2]),
    st.sampled_from([(0, 4095), (0, 65535), (-127, 127)]),
)
def test_scaling_equals_exact_integers_and_rounds(factors, sums, slope, limits):
    scaling = Scaling.of(np.array(factors), *limits, slope)
    found = scaling(np.repeat(np.array(sums)[:, None], len(factors), axis=1))
    for i, total in enumerate(sums):
        for j, factor in enumerate(factors):
            falling = slope is not None and total < 0
            whole = int((scaling.negative if falling else scaling.multiplier)[j])
            exact = (total * whole + 2 ** (scaling.shift - 1)) // 2**scaling.shift
            assert found[i, j] == min(max(exact, limits[0]), limits[1])
            real = total * factor * (slope if falling else 1.0)
            # Multipliers are rounded to 2^-shift, sums to the nearest.
            slack = 0.5 + abs(total) * 0.5 / 2**scaling.shift + 1e-9 * abs(real)
            assert abs(found[i, j] - np.clip(real, *limits)) <= slack + 1e-6


def test_products_are_exact_beyond_doubles():
    rng = np.random.default_rng(0)
    for high in (1 << 10, 1 << 29):
        x, weights = rng.integers(-high, high, (3, 5)), rng.integers(-high, high, (4, 5))
        expected = [
            [sum(int(a) * int(b) for a, b in zip(r, w, strict=True)) for w in weights] for r in x
        ]
        np.testing.assert_array_equal(product(x, weights), expected)


def test_upsampling_equals_the_librarys_transposed_convolution():
    rng = np.random.default_rng(0)
    x, kernel = rng.integers(-127, 128, (2, 3, 5, 4)), rng.integers(-127, 128, (4, 4, 4, 3))
    bias = rng.integers(-1000, 1000, 3)
    scaling = Scaling.of(np.array([1e-3, 2e-3, 5e-4]), -127, 127, 0.2)
    made = Upsample(kernel, bias, scaling, 8)(x)
    # All sums are below 2^24: the library's floats are exact.
    sums = plain_upsample(jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32))
    np.testing.assert_array_equal(made, scaling(np.asarray(sums).astype(np.int64) + bias))
    assert len(np.unique(made)) > 50


def test_a_dense_layer_sees_coordinates_from_the_middle():
    rng = np.random.default_rng(0)
    weights, bias = rng.integers(-127, 128, (12, 3)), rng.integers(-(10**6), 10**6, 12)
    scaling = Scaling.of(np.full(12, 1e-5), -127, 127, 0.1)
    made = Dense(weights, bias, scaling, (2, 3, 2), 8, 32_768)(np.array([[0, 40_000, 65_535]]))
    centred = [0 - 32_768, 40_000 - 32_768, 65_535 - 32_768]
    for d, place in enumerate(np.ndindex(2, 3, 2)):
        total = sum(int(w) * c for w, c in zip(weights[d], centred, strict=True)) + int(bias[d])
        real = total * 1e-5 * (0.1 if total < 0 else 1)
        assert abs(made[(0, *place)] - np.clip(real, -127, 127)) <= 0.51


def test_a_dense_layer_behind_another_sees_activations_as_they_are():
    rng = np.random.default_rng(0)
    weights, bias = rng.integers(-127, 128, (5, 3)), rng.integers(-(10**4), 10**4, 5)
    x = np.array([[-127, 0, 88], [1, 2, -3]])
    scaling = Scaling.of(np.full(5, 1e-3), -127, 127, 0.1)
    layer = Dense(weights, bias, scaling, (5,), 8, 0)
    sums = x @ weights.T + bias
    real = np.clip(sums * 1e-3 * np.where(sums < 0, 0.1, 1), -127, 127)
    assert np.abs(layer(x) - real).max() <= 0.51
    assert layer.taken(127) == (-127, 127)
    assert np.abs(sums).max() <= layer.bound(127)


def test_coordinates_are_sums_of_latents(kan_in_integers):
    q = kan_in_integers
    words = q.tables.look_up(np.random.default_rng(0).integers(0, 1 << 16, (500, 6)))
    lo, hi = (end.reshape(3, 2).sum(axis=1) for end in (q.tables.lo, q.tables.hi))
    found = lo + (hi - lo) * q.sum(words) / 65535
    expected = q.tables.latents(words).reshape(-1, 3, 2).sum(axis=2)
    assert (np.abs(found - expected) / (hi - lo)).max() * 65535 <= 1.5  # codes


def test_tabulated_basis_functions_are_the_basis_functions(kan, kan_in_integers):
    q = kan_in_integers
    basis, layer = kan.generator.layers[0].basis, q.layers[0]
    lo, hi = (end.reshape(3, 2).sum(axis=1) for end in (q.tables.lo, q.tables.hi))
    grid = np.asarray(basis.grid, np.float64)
    spacing = grid[:, 1] - grid[:, 0]  # uniform: the model was not trained

    def features(codes):
        x = lo + (hi - lo) * codes / 65535
        scaled = (x[..., None] - grid) / (spacing * np.exp(float(basis.log_tau)))[:, None]
        bumps = np.exp(-0.5 * scaled**2)
        return np.concatenate([bumps, np.maximum(x, 0)[..., None]], axis=-1)

    knots = features(np.linspace(0, 65536, (1 << layer.cells) + 1)[:, None])
    codes = np.random.default_rng(0).integers(0, 1 << 16, (2000, 3))
    top = (1 << (layer.bits - 1)) - 1
    found = layer.features(codes) / top * np.abs(knots).max(axis=0)
    error = np.abs(found - features(codes)).max(axis=0) / np.abs(knots).max(axis=0)
    assert error[:, :-1].max() <= 1e-3
    assert error[:, -1].max() <= 2.0**-layer.cells  # a ReLU bends within a cell


# The whole.


@pytest.mark.parametrize("name", ["kan", "cnn", "deep"])
def test_images_in_integers_are_those_of_the_float_model(name, request):
    model, q = request.getfixturevalue(name), request.getfixturevalue(f"{name}_in_integers")
    u = np.random.default_rng(1).integers(0, 1 << 16, (200, len(q.tables.words)))
    made = q.generate(u)
    assert made.min() >= 0
    assert made.max() <= 255
    exact = np.asarray(model.generate((u.reshape(-1, *model.prior.shape) + 0.5) / 65536))
    assert exact.std(axis=0).mean() > 0.1  # else there would be nothing to compare
    error = np.mean((made / 255 - exact) ** 2)
    assert -10 * np.log10(error) >= 35


def test_an_output_without_sigmoid_has_codes_of_16_bits(prior):
    generator = KAN(
        3, (5,), key=jax.random.key(1), depth=1, amplitude=10.0, grid_size=8, output="identity"
    )
    model = KAEM(prior, generator)
    q = quantise(model, weight_bits=16)
    u = np.random.default_rng(1).integers(0, 1 << 16, (300, 6))
    made = q.generate(u)
    assert made.max() > 255
    exact = np.asarray(model.generate((u.reshape(-1, 3, 2) + 0.5) / 65536))
    assert np.abs(q.data(made) - exact).max() <= 2e-3 * np.ptp(exact)
    found = quality(model, q, 300)
    assert found["psnr"] >= 60
    assert "ssim" not in found


def test_samples_are_images_of_their_seeds(kan_in_integers):
    seeds = np.array([3, 9])
    made = kan_in_integers.sample(seeds)
    np.testing.assert_array_equal(made, kan_in_integers.generate(quantiles(seeds, 6)))
    np.testing.assert_array_equal(made[1:], kan_in_integers.sample(seeds[1:]))


# What is said of it.


def test_psnr_is_the_formula():
    x = np.random.default_rng(0).random((3, 4, 4, 1))
    np.testing.assert_allclose(psnr(x, x + 1 / 255), 48.1308, atol=1e-3)  # 20 log10 255
    np.testing.assert_allclose(psnr(x, x + 0.1, 10.0), 40, atol=1e-9)
    assert (psnr(x, x) == 120).all()


def test_ssim_of_equal_and_of_constant_images():
    x = np.random.default_rng(0).random((3, 14, 12, 2))
    np.testing.assert_allclose(ssim(x, x), 1, atol=1e-12)
    a, b = np.full((1, 12, 12, 1), 0.3), np.full((1, 12, 12, 1), 0.5)
    np.testing.assert_allclose(ssim(a, b), (0.3 + 1e-4) / (0.34 + 1e-4), atol=1e-9)
    with pytest.raises(ValueError, match="11 x 11 pixels"):
        ssim(a[:, :8], b[:, :8])


def test_ssim_is_the_formula_in_one_window():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 11, 11))
    place = np.arange(11) - 5
    weight = np.exp(-(place[:, None] ** 2 + place**2) / (2 * 1.5**2))
    weight /= weight.sum()
    mean = [(weight * image).sum() for image in (x, y)]
    gap = [image - m for image, m in zip((x, y), mean, strict=True)]
    variance, covariance = [(weight * g**2).sum() for g in gap], (weight * gap[0] * gap[1]).sum()
    c1, c2 = 0.01**2, 0.03**2
    expected = (2 * mean[0] * mean[1] + c1) * (2 * covariance + c2)
    expected /= (mean[0] ** 2 + mean[1] ** 2 + c1) * (sum(variance) + c2)
    found = ssim(x[None, ..., None], y[None, ..., None])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_quality_tells_a_good_model_from_a_bad_one(kan, kan_in_integers):
    data = np.asarray(kan.sample(jax.random.key(5), 300))
    good = quality(kan, kan_in_integers, 300, data=data)
    assert good["ks_largest"] == kolmogorov_smirnov(kan.prior, kan_in_integers.tables).max()
    assert good["psnr"] >= 35
    assert good["generator_psnr"] >= good["psnr"] - 0.5
    assert good["psnr_worst"] <= good["psnr"]
    assert good["ssim"] > 0.99
    assert good["proxy_change"] == pytest.approx(good["proxy"] - good["proxy_float"])
    assert good["prior_bytes"] == 6 * 1025 * 2
    assert good["prior_float_bytes"] == 4 * 6 * (2 + 2 * 257)
    parameters = jax.tree.leaves(eqx.filter(kan.generator, eqx.is_array))
    assert good["generator_float_bytes"] == 4 * sum(leaf.size for leaf in parameters)

    last = kan_in_integers.layers[-1]
    noise = np.random.default_rng(0).integers(-40, 41, last.weights.shape)
    broken = replace(last, weights=last.weights + noise)
    bad = quality(
        kan, replace(kan_in_integers, layers=(*kan_in_integers.layers[:-1], broken)), 300, data=data
    )
    assert bad["ks_largest"] == good["ks_largest"]
    assert bad["psnr"] < good["psnr"] - 6
    assert bad["ssim"] < good["ssim"]
    assert abs(bad["proxy_change"]) > 3 * abs(good["proxy_change"])


def test_quality_without_data_compares_the_two_models(cnn, cnn_in_integers):
    found = quality(cnn, cnn_in_integers, 200, key=jax.random.key(3))
    assert found == quality(cnn, cnn_in_integers, 200, key=jax.random.key(3))
    assert found["proxy_between"] < 0.2 * found["proxy_between_draws"]
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        quality(cnn, cnn_in_integers, 1)


def test_a_prior_alone_has_no_images(kan):
    q = quantise(kan, generator=False, entries=64)
    found = quality(kan, q)
    assert found["ks_largest"] == kolmogorov_smirnov(kan.prior, q.tables).max()
    assert found["prior_bytes"] == 6 * 65 * 2
    assert not any("psnr" in name or "generator" in name for name in found)
    with pytest.raises(ValueError, match="only the prior was quantised"):
        q.generate(np.zeros((1, 6), np.int64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"entries": 1000}, "power of two from 8 to 65536 entries, got 1000"),
        ({"entries": 16384, "addressing": "tails"}, "from 8 to 8192 entries, got 16384"),
        ({"bits": 17}, "4 to 16 bits, got 17"),
        ({"weight_bits": 3}, "weight_bits must be from 4 to 16, got 3"),
        ({"inner_bits": 32}, "inner_bits must be from 4 to 16, got 32"),
    ],
)
def test_wrong_arguments_are_refused(kan, wrong, message):
    with pytest.raises(ValueError, match=message):
        quantise(kan, **wrong)


def test_what_has_no_integers_is_refused_by_name(prior):
    wavelets = KAEM(prior, KAN(3, (4,), key=jax.random.key(0), basis="morlet"))
    with pytest.raises(UserError, match="Morlet functions has no shared basis"):
        quantise(wavelets)
    generator = CNN(4, (8, 8, 1), key=jax.random.key(0), widths=(4,))
    rival = VAE(Encoder((8, 8, 1), 4, key=jax.random.key(0), widths=(4,)), generator)
    with pytest.raises(UserError, match=r"needs a KAEM.*got a VAE"):
        quantise(rival)
