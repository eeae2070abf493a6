"""Metrics against closed forms, other algorithms, exact expectations, and coverage by simulation."""

import itertools
import tracemalloc
from importlib import resources

import numpy as np
import pytest
from scipy import linalg, ndimage, stats
from scipy.spatial.distance import cdist

from kaem.errors import UserError
from kaem.metrics.distances.frechet import Statistics, factor, frechet_distance, statistics
from kaem.metrics.distances.infinity import default_sizes, fid_infinity, influence, kid_infinity
from kaem.metrics.distances.kernel import kid, mmd
from kaem.metrics.distances.proxies import ProxyFeatures, precision_recall, proxy_distance


def features(rng, n, dimension):
    """Rectified, correlated and offset, as the last layer of a network is."""
    mixing = rng.normal(size=(dimension, dimension)) / np.arange(1, dimension + 1) ** 0.5
    return np.maximum(rng.normal(size=(n, dimension)) @ mixing.T / 4 + 0.3, 0)


# --- the Frechet distance


@pytest.mark.parametrize(("n", "m"), [(40, 60), (5, 60), (40, 6), (4, 5)])
def test_the_distance_is_that_of_the_matrix_square_root(n, m):
    rng = np.random.default_rng(0)
    a, b = statistics(features(rng, n, 8)), statistics(features(rng, m, 8) * 1.3 + 0.1)
    # sqrtm of a singular product is undefined; a ridge this small moves the answer by about 1e-5.
    ridge = 1e-12 * np.eye(8)
    root = linalg.sqrtm((a.covariance + ridge) @ (b.covariance + ridge))
    expected = np.sum((a.mean - b.mean) ** 2) + np.trace(
        a.covariance + b.covariance - 2 * root.real
    )
    np.testing.assert_allclose(frechet_distance(a, b), expected, atol=2e-5)
    np.testing.assert_allclose(frechet_distance(b, a), frechet_distance(a, b), rtol=1e-9)


def test_the_distance_of_diagonal_gaussians_is_closed_form():
    rng = np.random.default_rng(1)
    means, variances = rng.normal(size=(2, 300)), rng.gamma(1.0, size=(2, 300))
    variances[:, :50] = 0  # dead features, of which Inception has some
    a, b = (Statistics(10**6, m, np.diag(v)) for m, v in zip(means, variances, strict=True))
    expected = np.sum((means[0] - means[1]) ** 2 + np.subtract(*np.sqrt(variances)) ** 2)
    np.testing.assert_allclose(frechet_distance(a, b), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("n", "dimension"),
    [(300, 512), (1500, 512), pytest.param(1000, 2048, marks=pytest.mark.slow)],
)
def test_a_set_is_at_no_distance_from_itself(n, dimension):
    a = statistics(features(np.random.default_rng(2), n, dimension))
    assert frechet_distance(a, a) < 1e-4


def test_statistics_are_numpys():
    x = features(np.random.default_rng(3), 50, 7).astype(np.float32)
    n, mean, covariance = statistics(x)
    assert (n, covariance.dtype) == (50, np.float64)
    np.testing.assert_allclose(mean, x.mean(0, dtype=np.float64))
    np.testing.assert_allclose(covariance, np.cov(x.astype(np.float64), rowvar=False))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (np.full((5, 3), np.nan), "5 of 5 .* NaN .* trained again"),
        (np.zeros((5, 2, 2)), r"\(5, 2, 2\), expected \[n, D\]"),
        (np.zeros((1, 3)), "at least 2"),
    ],
)
def test_broken_features_are_refused(broken, words):
    with pytest.raises(UserError, match=words):
        statistics(broken)
    with pytest.raises(UserError, match=words):
        mmd(broken, np.ones((5, 3)))


def test_different_extractors_are_refused():
    x, y = np.eye(5), np.eye(4)
    for compare in (lambda: frechet_distance(statistics(x), statistics(y)), lambda: mmd(x, y)):
        with pytest.raises(UserError, match=r"5 and 4 features .* same extractor"):
            compare()


# --- the kernel distance

POINTS = np.array([[1.0, 0.2, -0.5], [-0.3, 0.8, 1.5], [0.4, -1.2, 0.1]])
P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
CUBIC = (POINTS @ POINTS.T / 3 + 1) ** 3
TRUTH = (P - Q) @ CUBIC @ (P - Q)  # MMD^2 between the two distributions on three points


def test_mmd_is_the_double_sum(monkeypatch):
    monkeypatch.setattr("kaem.metrics.distances.kernel._BLOCK", 4)
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(11, 5)), rng.normal(size=(9, 5)) + 0.3

    def mean(pairs):
        return np.mean([(x @ y / 5 + 1) ** 3 for x, y in pairs])

    expected = mean(itertools.permutations(a, 2)) + mean(itertools.permutations(b, 2))
    expected -= 2 * mean(itertools.product(a, b))
    np.testing.assert_allclose(mmd(a, b), expected, rtol=1e-12)


def test_mmd_is_unbiased():
    """The exact expectation: every sample of two from P and three from Q, with its probability."""
    total = 0.0
    for i in itertools.product(range(3), repeat=2):
        for j in itertools.product(range(3), repeat=3):
            total += P[list(i)].prod() * Q[list(j)].prod() * mmd(POINTS[list(i)], POINTS[list(j)])
    np.testing.assert_allclose(total, TRUTH, rtol=1e-12)


@pytest.mark.parametrize("method", ["kid", "kid_infinity"])
def test_the_error_of_the_kernel_distance_covers(method):
    """95 % intervals, 100 times: fewer than 88 has a chance of 1 in 700."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        a, b = POINTS[rng.choice(3, 240, p=P)], POINTS[rng.choice(3, 280, p=Q)]
        if method == "kid":
            value, error = kid(a, b, subsets=20, subset_size=100)
        else:
            value, error = kid_infinity(a, b)[:2]
        covered += abs(value - TRUTH) < 1.96 * error
    assert covered >= 88


def test_kid_of_whole_sets_is_mmd():
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(50, 4)), rng.normal(size=(50, 4)) + 1
    np.testing.assert_allclose(kid(a, b, subset_size=50, subsets=3).value, mmd(a, b), rtol=1e-10)
    with pytest.raises(UserError, match=r"at least subset_size = 1000 .* at most 50"):
        kid(a, b)
    with pytest.raises(ValueError, match="at least 2 subsets"):
        kid(a, b, subsets=1)


def test_the_points_of_kid_infinity_are_mmds_of_parts():
    rng = np.random.default_rng(7)
    real, fake = rng.normal(size=(150, 4)), rng.normal(size=(300, 4)) + 0.5
    found = kid_infinity(real, fake, seed=3)
    order = np.random.default_rng(3).permutation(300)
    assert found.sizes == tuple(range(30, 301, 30))
    expected = [mmd(real, fake[order[:m]]) for m in found.sizes]
    np.testing.assert_allclose(found.values, expected, rtol=1e-10)
    np.testing.assert_allclose(found.value, mmd(real, fake), rtol=1e-10)


# --- extrapolation


def gaussians(dimension, decay, same):
    """A reference and a model with spectra k^-decay, as statistics of infinitely many samples."""
    rng = np.random.default_rng(dimension)
    spectrum = np.arange(1.0, dimension + 1) ** -decay
    axes = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    reference = Statistics(10**9, np.zeros(dimension), (axes * spectrum) @ axes.T)
    if same:
        return reference, reference
    turned = np.linalg.qr(axes + 0.3 * rng.normal(size=axes.shape) / dimension**0.5)[0]
    covariance = (turned * spectrum * rng.uniform(0.5, 1.5, dimension)) @ turned.T
    mean = 0.3 * axes @ (np.sqrt(spectrum) * rng.normal(size=dimension))
    return reference, Statistics(10**9, mean, covariance)


def draw(rng, n, of, skewed=False):
    shape = (n, len(of.mean))
    noise = rng.exponential(size=shape) - 1 if skewed else rng.normal(size=shape)
    return noise @ factor(of).T + of.mean


def plain_interval(reference, x, rng):
    """The usual regression: one random subset of each size, least squares, its own error."""
    sizes = default_sizes(len(x))
    values = [
        frechet_distance(reference, statistics(x[rng.permutation(len(x))[:m]])) for m in sizes
    ]
    fit = stats.linregress(1 / np.array(sizes), values)
    half = stats.t.ppf(0.975, len(sizes) - 2) * fit.intercept_stderr
    return fit.intercept - half, fit.intercept + half


def coverage(dimension, n, decay, same, *, skewed=False, finite=False, plain=False):
    """How many of 100 intervals hold the truth."""
    reference, model = gaussians(dimension, decay, same)
    truth = frechet_distance(reference, model)
    rng = np.random.default_rng(8)
    covered = 0
    for seed in range(100):
        x = draw(rng, n, model, skewed)
        if plain:
            lo, hi = plain_interval(reference, x, rng)
        else:
            real = draw(rng, 2 * n, reference) if finite else reference
            lo, hi = fid_infinity(real, x, seed=seed, extrapolate_reference=finite).interval
        covered += lo <= truth <= hi
    return covered


# Small enough for matrix products not to be split over threads, which crawls on a busy machine.
CASES = {
    "few dimensions": dict(dimension=16, n=500, decay=0.5, same=False),
    "few dimensions, no distance": dict(dimension=16, n=500, decay=0.5, same=True),
    "skewed features": dict(dimension=16, n=500, decay=0.5, same=False, skewed=True),
    "finite reference": dict(dimension=16, n=500, decay=0.5, same=False, finite=True),
    "20,000 to 2048": dict(dimension=24, n=240, decay=0.0, same=False),
    "20,000 to 2048, no distance": dict(dimension=24, n=240, decay=0.0, same=True),
}
LARGE = {
    "64 in 640": dict(dimension=64, n=640, decay=0.0, same=False),
    "64 in 640, no distance": dict(dimension=64, n=640, decay=0.0, same=True),
    "64 in 2000": dict(dimension=64, n=2000, decay=0.0, same=False),
    "64 in 2000, no distance": dict(dimension=64, n=2000, decay=0.0, same=True),
    "fewest allowed": dict(dimension=128, n=256, decay=1.0, same=False),
    "fewest allowed, no distance": dict(dimension=128, n=256, decay=1.0, same=True),
    "256 in 2560": dict(dimension=256, n=2560, decay=1.0, same=False),
    "256 in 2560, no distance": dict(dimension=256, n=2560, decay=0.0, same=True),
    "finite reference": dict(dimension=64, n=640, decay=0.0, same=True, finite=True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_interval_of_fid_infinity_covers(case):
    assert coverage(**CASES[case]) >= 90


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_the_interval_of_fid_infinity_covers_in_many_dimensions(case):
    assert coverage(**LARGE[case]) >= 90


@pytest.mark.parametrize("case", ["few dimensions", "20,000 to 2048"])
def test_the_plain_regression_does_not_cover(case):
    assert coverage(**CASES[case], plain=True) < 80


def test_the_influence_is_the_derivative():
    rng = np.random.default_rng(9)
    x, other = features(rng, 40, 6), statistics(features(rng, 50, 6) + 0.2)
    own, step = statistics(x), 1e-5
    expected = []
    for centred in x - own.mean:
        ends = [
            Statistics(
                own.n,
                own.mean + e * centred,
                own.covariance + e * (np.outer(centred, centred) - own.covariance),
            )
            for e in (-step, step)
        ]
        low, high = (frechet_distance(other, end) for end in ends)
        expected.append((high - low) / (2 * step))
    found = influence(x, own, other, factor(other))
    np.testing.assert_allclose(found, expected - np.mean(expected), atol=1e-6)


def test_the_curve_passes_through_the_value_at_all_samples():
    reference, model = gaussians(8, 0.5, same=False)
    x = draw(np.random.default_rng(10), 1000, model)
    found = fid_infinity(reference, x)
    assert found.sizes == default_sizes(1000) == tuple(range(100, 1001, 100))
    np.testing.assert_allclose(found.values[-1], frechet_distance(reference, statistics(x)))
    np.testing.assert_allclose(np.polyval(found.coefficients[::-1], 1 / 1000), found.values[-1])
    assert found.coefficients[0] == found.value
    line = stats.linregress(1 / np.array(found.sizes), found.values)
    np.testing.assert_allclose(found.r_squared, line.rvalue**2, rtol=1e-8)
    assert found == fid_infinity(reference, x)
    assert found.value != fid_infinity(reference, x, seed=1).value
    shorter = fid_infinity(reference, x, sizes=[100, 200, 300, 500])
    assert abs(shorter.value - found.value) < found.error


def test_too_little_to_extrapolate_from_is_refused():
    assert default_sizes(20_000) == tuple(range(2000, 20_001, 2000))
    reference, model = gaussians(128, 1.0, same=False)
    x = draw(np.random.default_rng(11), 255, model)
    with pytest.raises(UserError, match="got 199 samples, expected at least 200"):
        default_sizes(199)
    with pytest.raises(UserError, match=r"255 generated samples of 128 .* at least 256"):
        fid_infinity(reference, x)
    with pytest.raises(UserError, match="100 reference samples"):
        fid_infinity(x[:100, :8], x[:, :8], extrapolate_reference=True)
    with pytest.raises(ValueError, match="expected its features"):
        fid_infinity(reference, x, extrapolate_reference=True)
    with pytest.raises(ValueError, match="at least 4 different"):
        fid_infinity(x[:, :8], x[:, :8], sizes=[50, 100])


# --- proxies


@pytest.fixture(scope="module")
def digits():
    with resources.as_file(resources.files("kaem.data") / "mnist_5k.npz") as path:
        file = np.load(path)
        return file["x"], file["y"]


def test_the_proxy_tells_corrupted_digits_from_others(digits):
    """The table of the module's docstring, for one pair of halves."""
    x, y = digits
    rng = np.random.default_rng(12)
    order = rng.permutation(len(x))
    half, rest = np.split(order, 2)
    a, b = x[half], x[rest] / 255
    extract = ProxyFeatures.fit(a)
    base = statistics(extract(a))

    def distance(samples):
        return frechet_distance(base, statistics(extract(samples)))

    clean = distance(b)
    assert clean < 0.01  # of the variance
    blurred = ndimage.gaussian_filter(b, (0, 0.7, 0.7, 0))
    noisy = np.clip(b + 0.1 * rng.normal(size=b.shape), 0, 1)
    assert distance(blurred) > 50 * clean
    assert distance(noisy) > 15 * clean
    missing = [distance(b[y[rest] != digit]) for digit in range(10)]
    assert min(missing) > 1.2 * clean
    assert np.mean(missing) > 2 * clean


def test_proxy_features_are_deterministic_and_take_bytes_floats_and_rows(digits):
    x = digits[0][:200]
    found = ProxyFeatures.fit(x)(x[:50])
    assert found.shape == (50, 64)
    np.testing.assert_array_equal(found, ProxyFeatures.fit(x)(x[:50]))
    np.testing.assert_allclose(found, ProxyFeatures.fit(x[..., 0] / 255)(x[:50, ..., 0] / 255))
    assert proxy_distance(x, x) < 1e-6 < proxy_distance(x[:100], x[100:])
    rng = np.random.default_rng(13)
    rows = rng.normal(size=(300, 6)) * np.arange(1, 7)
    # With every component kept, features are a rotation of the rows in units of their variance.
    ratio = cdist(ProxyFeatures.fit(rows)(rows), ProxyFeatures.fit(rows)(rows))
    expected = cdist(rows, rows) / np.sqrt(rows.var(0, ddof=1).sum())
    np.testing.assert_allclose(ratio, expected, atol=1e-9)


def test_proxy_features_hold_no_copy_of_all_images():
    x = np.random.default_rng(0).integers(0, 256, (6000, 32, 32, 3), np.uint8)
    extract = ProxyFeatures.fit(x[:500])
    tracemalloc.start()
    extract(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * x.size  # bytes of it in double precision


def test_what_the_proxy_cannot_take_is_refused(digits):
    x = digits[0][:100]
    with pytest.raises(UserError, match=r"\(14, 14, 1\), expected \(28, 28, 1\)"):
        ProxyFeatures.fit(x)(x[:, ::2, ::2])
    brightness = np.linspace(0.1, 0.9, 10)[:, None, None]
    flat = np.ones((10, 8, 8))  # of which filters leave what rounding does
    for alike in (0 * flat, 0.3 * flat, brightness * flat, np.full((10, 3), 0.1)):
        with pytest.raises(UserError, match="all the same"):
            ProxyFeatures.fit(alike)
    with pytest.raises(UserError, match=r"expected images \[n, height, width\]"):
        ProxyFeatures.fit(np.zeros(10))


def test_precision_and_recall_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr("kaem.metrics.distances.proxies._CHUNK", 7)
    rng = np.random.default_rng(14)
    real, fake = rng.normal(size=(40, 3)) + 100, 1.3 * rng.normal(size=(50, 3)) + 101

    def share(x, balls, k):
        radii = np.sort(cdist(balls, balls), axis=1)[:, k]  # the nearest is the feature itself
        return np.mean((cdist(x, balls) <= radii).any(axis=1))

    for k in (1, 3):
        found = precision_recall(real, fake, k)
        assert found == (share(fake, real, k), share(real, fake, k))
        assert 0.2 < min(found) <= max(found) < 1


def test_missing_modes_lower_recall_and_noise_lowers_precision():
    rng = np.random.default_rng(15)
    centres = 20 * np.eye(4)
    real = np.concatenate([c + rng.normal(size=(250, 4)) for c in centres])
    full = np.concatenate([c + rng.normal(size=(250, 4)) for c in centres])
    good = precision_recall(real, full)
    assert min(good) > 0.8
    dropped = precision_recall(real, full[:500])
    assert dropped.precision > 0.8
    assert 0.4 < dropped.recall <= 0.5
    noisy = precision_recall(real, np.concatenate([full[::2], rng.uniform(-60, -20, (500, 4))]))
    assert 0.4 < noisy.precision <= 0.5
    assert noisy.recall > 0.7
    assert precision_recall(real, real) == (1, 1)
    with pytest.raises(UserError, match="at least 4"):
        precision_recall(real, full[:3])
    with pytest.raises(ValueError, match="at least 1 neighbour"):
        precision_recall(real, full, k=0)
