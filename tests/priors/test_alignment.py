"""Alignment against SciPy's densities, planted mixtures, finite differences and scipy.optimize."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import kaem
from kaem.errors import UserError
from kaem.generators import CNN, KAN
from kaem.loading import read
from kaem.priors import AlignedPrior, MixturePrior, UnivariatePrior
from kaem.priors.alignment import aligned, refit, unmix, whiten
from kaem.priors.unmixing import rotation


def amari(matrix):
    """Amari's index: 0 for a scaled permutation, about 0.5 for a random matrix."""
    size, rest = np.abs(matrix), len(matrix) - 1
    rows = (size / size.max(axis=1, keepdims=True)).sum(axis=1) - 1
    columns = (size / size.max(axis=0, keepdims=True)).sum(axis=0) - 1
    return (rows.mean() + columns.mean()) / (2 * rest)


def planted(n, seed=0):
    """Eight independent sources of unit variance, none of them Gaussian, and a mixing of them."""
    rng = np.random.default_rng(seed)
    sources = np.stack(
        [
            rng.uniform(-1, 1, n),
            rng.laplace(size=n),
            rng.choice([-1, 1], n) + 0.3 * rng.normal(size=n),
            rng.exponential(size=n),
            rng.standard_t(4, n),
            rng.choice([-1, 1], n, p=[0.25, 0.75]) + 0.4 * rng.normal(size=n),
            rng.gamma(3, size=n),
            rng.logistic(size=n),
        ],
        axis=1,
    )
    sources = (sources - sources.mean(axis=0)) / sources.std(axis=0)
    mixing = rng.normal(size=(8, 8)) * np.geomspace(0.1, 10, 8)  # of very different scales
    return sources, mixing, sources @ mixing.T + rng.normal(size=8)


def bumpy(q=2, seed=0, basis="bspline", domain=(-4.0, 4.0)):
    """A prior of q densities with energies of visible size."""
    prior = MixturePrior(
        1, q, key=jax.random.key(seed), basis=basis, grid_size=8, domain=domain, cells=256
    )
    values = jax.random.normal(jax.random.key(seed + 1), prior.energies.basis.coefficients.shape)
    return eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, values)


@eqx.filter_jit
def slope(prior, z):
    """The gradient of the mean log-density in the prior's parameters."""
    return eqx.filter_grad(lambda p: p.mean_log_prob(z))(prior)


@eqx.filter_jit
def decoded(generator, z):
    return generator.decoder()(z)


@eqx.filter_jit
def mean_log_prob(prior, z):
    return prior.mean_log_prob(z)


MIXING = np.array([[1.5, 0.4], [-0.7, 0.9]])
OFFSET = np.array([0.3, -1.0])


@pytest.fixture(scope="module")
def prior():
    return AlignedPrior(bumpy(), MIXING, OFFSET)


# The density.


def test_the_log_density_is_that_of_mixed_normals():
    """Flat energies over a Gaussian reference: z is normal with covariance A A^T, to 1e-8 in the tails."""
    q = 3
    flat = MixturePrior(1, q, key=jax.random.key(0), basis="bspline", domain=(-7.0, 7.0))
    flat = eqx.tree_at(lambda p: p.energies.basis.coefficients, flat, replace_fn=jnp.zeros_like)
    rng = np.random.default_rng(0)
    mixing, offset = rng.normal(size=(q, q)) + 2 * np.eye(q), rng.normal(size=q)
    prior = AlignedPrior(flat, mixing, offset)
    z = rng.normal(size=(20, q)) @ mixing.T + offset
    expected = stats.multivariate_normal(offset, mixing @ mixing.T).logpdf(z)
    np.testing.assert_allclose(prior.log_prob(jnp.asarray(z, jnp.float32)), expected, atol=1e-4)


def test_the_density_is_a_product_with_a_jacobian_and_integrates_to_one(prior):
    s = np.random.default_rng(1).uniform(-3.5, 3.5, (30, 2))
    nodes, densities = (np.asarray(a, np.float64) for a in prior.sources.densities(4001))
    each = [np.interp(s[:, q], nodes[0], densities[q]) for q in range(2)]
    expected = np.log(each[0] * each[1]) - np.log(abs(np.linalg.det(MIXING)))
    z = jnp.asarray(s @ MIXING.T + OFFSET, jnp.float32)
    np.testing.assert_allclose(prior.log_prob(z), expected, atol=1e-4)
    reach = 4 * np.abs(MIXING).sum(axis=1)
    axes = [np.linspace(m - r, m + r, 801) for m, r in zip(OFFSET, reach, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    density = np.exp(np.asarray(prior.log_prob(jnp.asarray(grid, jnp.float32)), np.float64))
    total = integrate.trapezoid(integrate.trapezoid(density, axes[1]), axes[0])
    assert abs(total - 1) < 2e-3  # edges of the parallelepiped cut cells of the grid
    corner = OFFSET + MIXING @ np.array([4.2, 0.0])
    assert prior.log_prob(jnp.asarray(corner, jnp.float32)) == -jnp.inf


def test_the_score_and_that_of_chains_are_derivatives_of_the_log_density(prior):
    z = prior.sample(jax.random.key(2), 50)
    expected = jax.jit(jax.grad(lambda z: jnp.sum(prior.log_prob(z))))(z)
    np.testing.assert_allclose(prior.score(z), expected, rtol=1e-3, atol=1e-4)

    @eqx.filter_jit
    def chains(prior, z, key):
        potential, draw = prior.for_chains()
        by_table = jax.grad(lambda z: jnp.sum(potential(z)[0]))(z)
        return *potential(z), by_table, draw(key, 4000)

    log_p, score, by_table, drawn = chains(prior, z, jax.random.key(3))
    np.testing.assert_allclose(log_p, prior.log_prob(z), atol=1e-4)
    np.testing.assert_allclose(score, expected, atol=3e-2)  # a table's
    np.testing.assert_allclose(score, by_table, rtol=1e-3, atol=1e-4)
    u = np.asarray(prior.cdf(drawn))
    assert min(stats.kstest(u[:, q], "uniform").pvalue for q in range(2)) > 1e-4


def test_quantiles_are_independent_and_invert(prior):
    u = jax.random.uniform(jax.random.key(4), (5, 7, 2), minval=0.01, maxval=0.99)
    z = prior.inverse_cdf(u)
    np.testing.assert_allclose(prior.cdf(z), u, atol=1e-5)
    sources = np.asarray(prior.sources.inverse_cdf(u), np.float64)
    np.testing.assert_allclose(z, sources @ MIXING.T + OFFSET, atol=1e-5)
    u = np.asarray(prior.cdf(prior.sample(jax.random.key(5), 4000)))
    assert abs(stats.spearmanr(*u.T).statistic) < 4 / 4000**0.5  # four standard errors: 1 in 16,000
    assert not prior.independent
    assert not hasattr(prior, "densities")


def test_the_gradient_of_the_mean_log_density_is_that_of_finite_differences(prior):
    z = prior.sample(jax.random.key(6), 200)
    grads = slope(prior, z)

    def value(mixing, offset):  # in double precision, from exact curves of log p
        s = np.linalg.solve(mixing, (np.asarray(z, np.float64) - offset).T)
        splines = [_log_p(prior.sources, q) for q in range(2)]
        log_p = sum(np.mean(spline(s[q])) for q, spline in enumerate(splines))
        return log_p - np.log(abs(np.linalg.det(mixing)))

    def difference(change):
        return (value(*change(1e-4)) - value(*change(-1e-4))) / 2e-4

    for i in range(2):
        along = np.eye(2)[i]
        expected = difference(lambda h, e=along: (MIXING, OFFSET + h * e))
        np.testing.assert_allclose(grads.offset[i], expected, rtol=2e-3, atol=2e-3)
        for j in range(2):
            one = np.outer(along, np.eye(2)[j])
            expected = difference(lambda h, e=one: (MIXING + h * e, OFFSET))
            np.testing.assert_allclose(grads.mixing[i, j], expected, rtol=2e-3, atol=2e-3)
    own = slope(prior.sources, prior.unmixed(z))
    got, expected = (g.energies.basis.coefficients for g in (grads.sources, own))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def _log_p(prior, q):
    """log p of one source as SciPy's spline through 4,001 values."""
    from scipy.interpolate import CubicSpline

    nodes, densities = (np.asarray(a, np.float64) for a in prior.densities(4001))
    return CubicSpline(nodes[0], np.log(densities[q]))


@pytest.mark.parametrize(
    ("mixing", "offset", "message"),
    [
        (np.eye(3), np.zeros(2), "shape"),
        (np.eye(2), np.zeros(3), "shape"),
        (np.ones((2, 2)), np.zeros(2), "condition number"),
        (np.full((2, 2), np.nan), np.zeros(2), "finite"),
        (np.eye(2), np.full(2, np.inf), "finite"),
    ],
)
def test_bad_mixings_are_refused(mixing, offset, message):
    with pytest.raises(ValueError, match=message):
        AlignedPrior(bumpy(), mixing, offset)


def test_sources_have_one_density_for_each_coordinate():
    univariate = UnivariatePrior(2, 3, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"\(Q,\)"):
        AlignedPrior(univariate, np.eye(3), np.zeros(3))
    with pytest.raises(ValueError, match="sum the latents"):
        aligned(univariate, np.zeros((100, 3)))


# Folding.


@pytest.mark.parametrize("prepared", [False, True])
def test_a_generator_absorbs_the_mixing_exactly(prepared):
    rng = np.random.default_rng(0)
    cnn = CNN(6, (8, 8, 1), key=jax.random.key(0), widths=(8, 4))
    cnn = cnn.prepared() if prepared else cnn
    mixing, offset = rng.normal(size=(6, 6)), rng.normal(size=6)
    absorbed = cnn.absorb(mixing, offset)
    assert (absorbed.taps is None) == (cnn.taps is None)
    s = rng.normal(size=(16, 6))
    z = jnp.asarray(s @ mixing.T + offset, jnp.float32)
    got = decoded(absorbed, jnp.asarray(s, jnp.float32))
    np.testing.assert_allclose(got, decoded(cnn, z), atol=1e-5)


def test_a_model_with_the_mixing_absorbed_is_the_same_model(tmp_path):
    prior = AlignedPrior(bumpy(), MIXING, OFFSET)
    cnn = CNN(2, (4, 4, 1), key=jax.random.key(1), widths=(4,))
    model = kaem.KAEM(prior, cnn, noise=0.1)
    folded = kaem.KAEM(prior.sources, cnn.absorb(prior.mixing, prior.offset), noise=0.1)
    key = jax.random.key(2)
    np.testing.assert_allclose(model.sample(key, 5), folded.sample(key, 5), atol=1e-5)

    model.save(tmp_path / "model.safetensors")
    again = kaem.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read(tmp_path / "model.safetensors").prior.mixing, prior.mixing)
    assert again.prior.cached is not None  # loaded to be used, it is folded
    np.testing.assert_allclose(again.sample(key, 5), model.sample(key, 5), atol=1e-4)
    assert again.with_quantiles("a figure") is again
    with pytest.raises(UserError, match="independent coordinates"):
        model.with_quantiles("a figure")


def test_other_generators_say_that_they_cannot():
    kan = KAN(3, (4,), key=jax.random.key(0))
    with pytest.raises(UserError, match="Kolmogorov-Arnold"):
        kan.absorb(np.eye(3), np.zeros(3))
    cnn = CNN(2, (4, 4, 1), key=jax.random.key(1), widths=(4,))
    with pytest.raises(ValueError, match="shape"):
        cnn.absorb(np.eye(3), np.zeros(3))


# Refitting.


def likelihood_by_hand(prior, s):
    """The penalised mean log-likelihood of one B-spline density and its gradient, by SciPy alone."""
    from scipy.interpolate import BSpline

    grid = np.asarray(prior.energies.basis.grid[0], np.float64)
    step = grid[1] - grid[0]
    size = len(grid) + 2
    basis = BSpline(grid[0] + step * np.arange(-3, size + 1), np.eye(size), 3)
    x, w = np.polynomial.legendre.leggauss(2000)
    nodes = (grid[0] + grid[-1]) / 2 + (grid[-1] - grid[0]) / 2 * x
    measure = w * (grid[-1] - grid[0]) / 2 * stats.norm.pdf(nodes)
    at_nodes, means = basis(nodes), basis(s).mean(axis=0)

    def loss(c):
        mass = measure * np.exp(at_nodes @ c)
        value = np.log(mass.sum()) - c @ means + 0.5e-6 * c @ c
        return value, mass @ at_nodes / mass.sum() - means + 1e-6 * c

    return loss, size


def test_refitting_finds_what_scipy_finds_and_forgets_its_start():
    rng = np.random.default_rng(0)
    s = np.where(rng.random((3000, 2)) < 0.4, -1.5, 1.0) + 0.5 * rng.normal(size=(3000, 2))
    fits = [refit(bumpy(seed=seed), s) for seed in (0, 5)]
    got = np.asarray(fits[0].energies.basis.coefficients, np.float64)[:, 0]
    np.testing.assert_array_equal(got, fits[1].energies.basis.coefficients[:, 0])
    for q in range(2):
        loss, size = likelihood_by_hand(fits[0], s[:, q])
        best = optimize.minimize(loss, np.zeros(size), jac=True, method="BFGS", tol=1e-9)
        assert loss(got[q])[0] < best.fun + 1e-6
        assert np.abs(loss(got[q])[1]).max() < 1e-5


@pytest.mark.parametrize("basis", ["chebyshev", "bspline"])
def test_refitting_to_normal_samples_gives_the_normal(basis):
    """Both bases hold parabolas exactly: the fit costs half a nat for each coefficient and 20,000 samples."""
    rng = np.random.default_rng(1)
    n, mean, std = 20_000, 0.5, 0.6
    prior = MixturePrior(
        1, 2, key=jax.random.key(0), basis=basis, grid_size=6, domain=(-4.0, 4.0), cells=256
    )
    fitted = refit(prior, mean + std * rng.normal(size=(n, 2)))
    nodes, densities = (np.asarray(a, np.float64) for a in fitted.densities(2001))
    truth = stats.norm.pdf(nodes[0], mean, std)
    for density in densities:
        ratio = np.log(np.maximum(truth, 1e-300)) - np.log(density)
        assert abs(integrate.trapezoid(truth * ratio, nodes[0])) < 1e-3  # about 8 / (2 n) is 2e-4


def test_refitting_with_an_activation_and_several_inputs_is_maximal():
    """Where the gradient of the mean log-density is the ridge's, nothing else is better."""
    prior = UnivariatePrior(2, 3, key=jax.random.key(0), cells=256)
    s = np.clip(0.5 * np.random.default_rng(0).normal(size=(500, 3, 2)), -1.49, 1.49)
    fitted = refit(prior, s)
    grads = slope(fitted, jnp.asarray(s, jnp.float32))
    for name in ("basis.coefficients", "base_weight"):
        got, value = grads.energies, fitted.energies
        for part in name.split("."):
            got, value = getattr(got, part), getattr(value, part)
        np.testing.assert_allclose(got, 1e-6 * value, atol=5e-5)


def test_wavelets_are_improved_by_gradients():
    rng = np.random.default_rng(0)
    s = np.where(rng.random((2000, 2)) < 0.5, -1.0, 1.0) + 0.4 * rng.normal(size=(2000, 2))
    prior = MixturePrior(6, 2, key=jax.random.key(0), domain=(-5.0, 5.0), cells=256)
    fitted = refit(prior, s)
    before, after = (float(mean_log_prob(p, jnp.asarray(s, jnp.float32))) for p in (prior, fitted))
    truth = np.log(0.5 * sum(stats.norm.pdf(s, m, 0.4) for m in (-1, 1))).sum(axis=1).mean()
    assert after > before + 0.7 * (truth - before)  # 0.78 here; less ridge would reach 0.88
    assert float(jnp.max(fitted.table_error())) < 1e-3
    np.testing.assert_array_equal(fitted.domain, prior.domain)


def test_samples_outside_the_domain_are_clipped_or_refused():
    s = np.random.default_rng(0).uniform(-3, 3, (1000, 2))
    s[:8, 1] = 9.0
    fitted = refit(bumpy(), s)
    edge = s.copy()
    edge[:8, 1] = 4.0
    np.testing.assert_array_equal(
        fitted.energies.basis.coefficients, refit(bumpy(), edge).energies.basis.coefficients
    )
    s[:20, 1] = 9.0
    with pytest.raises(ValueError, match=r"2\.0% of the samples of coordinate 1"):
        refit(bumpy(), s)
    with pytest.raises(ValueError, match="NaN"):
        refit(bumpy(), np.full((10, 2), np.nan))
    with pytest.raises(ValueError, match="shape"):
        refit(bumpy(), s[:, :1])


# Unmixing.


def test_planted_sources_are_found():
    sources, mixing, z = planted(8000)
    found, mean = unmix(z)
    assert amari(np.linalg.solve(found, mixing)) < 0.05
    s = np.linalg.solve(found, (z - mean).T)
    np.testing.assert_allclose(np.cov(s, bias=True), np.eye(8), atol=1e-6)
    np.testing.assert_allclose(s.mean(axis=1), 0, atol=1e-8)
    best = np.abs(np.corrcoef(s, sources.T)[:8, 8:]).max(axis=0)
    assert best.min() > 0.99
    np.testing.assert_array_equal(unmix(z)[0], found)


def test_the_likelihood_never_falls_and_whitening_is_the_least():
    _, _, z = planted(3000, seed=3)
    mixing, mean = whiten(z)
    x = np.linalg.solve(mixing, (z - mean).T)
    w, history = rotation(x)
    assert (np.diff(history) >= 0).all()
    assert history[-1] > rotation(x, steps=0)[1][0]
    np.testing.assert_allclose(w @ w.T, np.eye(8), atol=1e-10)


def test_whitening_survives_directions_without_variance():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 4)) * [1, 10, 0.1, 1]
    z[:, 3] = z[:, 0] + z[:, 1]
    mixing, mean = whiten(z)
    np.testing.assert_allclose(mixing, mixing.T, atol=1e-9)
    assert np.linalg.cond(mixing) < 2e4
    x = np.linalg.solve(mixing, (z - mean).T)
    variances = np.linalg.eigvalsh(np.cov(x, bias=True))
    np.testing.assert_allclose(variances, [0, 1, 1, 1], atol=1e-6)
    assert np.isfinite(unmix(z)[0]).all()


@pytest.mark.parametrize("z", [np.zeros((3, 2)), np.zeros((10, 2, 2)), np.full((9, 2), np.nan)])
def test_latents_that_cannot_be_aligned_are_refused(z):
    with pytest.raises(ValueError, match=r"\[n, Q\]|NaN"):
        unmix(z)
    with pytest.raises(ValueError, match="alike"):
        whiten(np.ones((10, 2)))


# Everything.


@pytest.mark.parametrize("domain", [(-12.0, 12.0), (-1.5, 1.5)])
def test_an_aligned_prior_knows_fresh_latents(domain):
    """Within a tenth of a nat for each source of the density that made them; a normal is far off."""
    n = 8000
    sources, mixing, both = planted(2 * n)
    z, fresh = both[:n], both[n:]
    prior = MixturePrior(
        1, 8, key=jax.random.key(0), basis="bspline", grid_size=30, domain=domain, cells=256
    )
    found = aligned(prior, z)
    log_p = np.asarray(found.log_prob(jnp.asarray(fresh, jnp.float32)))
    inside = np.isfinite(log_p)
    assert inside.mean() > 0.97
    entropies = stats.differential_entropy(sources[n:], axis=0)
    expected = -entropies.sum() - np.linalg.slogdet(mixing)[1]
    normal = stats.multivariate_normal(z.mean(axis=0), np.cov(z.T)).logpdf(fresh).mean()
    assert log_p[inside].mean() > expected - 0.8
    assert log_p[inside].mean() > normal + 1.0
    drawn = np.asarray(found.sample(jax.random.key(1), n), np.float64)
    scale = np.sqrt(np.diag(np.cov(z.T)))
    np.testing.assert_allclose(
        np.cov(drawn.T) / np.outer(scale, scale), np.corrcoef(z.T), atol=0.12
    )


def test_aligned_latents_have_the_shape_of_the_prior():
    with pytest.raises(ValueError, match=r"\[n, 2\]"):
        aligned(bumpy(), np.random.default_rng(0).normal(size=(100, 3)))
