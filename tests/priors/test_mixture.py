"""The mixture prior against adaptive quadrature, and its tables against direct evaluation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from kaem import MixturePrior, UnivariatePrior
from kaem.bench import oracle


def sharp(seed=0, strength=1.5, **options):
    """A mixture whose wavelets are strong, of all widths, and spread over the domain."""
    prior = MixturePrior(4, 3, key=jax.random.key(seed), domain=(-6.0, 6.0), **options)
    rng = np.random.default_rng(seed)
    basis = prior.energies.basis
    new = eqx.tree_at(
        lambda b: (b.centre, b.raw_width, b.weight),
        basis,
        tuple(
            jnp.asarray(v, jnp.float32)
            for v in (
                rng.normal(0, 1.5, (3, 4)),
                np.exp(rng.uniform(-2.5, 1, (3, 4))),
                strength * rng.normal(size=(3, 4)),
            )
        ),
    )
    prior = eqx.tree_at(lambda p: p.energies.basis, prior, new)
    if prior.logits is not None:
        logits = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
        prior = eqx.tree_at(lambda p: p.logits, prior, logits)
    return prior


def unnormalised(prior, q, p):
    """exp(f) pi_0 of one component, in float64."""
    basis = prior.energies.basis
    mu, w = float(basis.centre[q, p]), float(basis.weight[q, p])
    s, tau = float(basis.width[q, p]), float(basis.tau)

    def density(z):
        x = (z - mu) / s
        return np.exp(w * np.cos(tau * x) * np.exp(-0.5 * x**2)) * stats.norm.pdf(z)

    return density


def quad(f, a, b, prior, q):
    points = np.clip(np.asarray(prior.energies.basis.centre[q], float), a, b)
    return integrate.quad(f, a, b, points=np.unique(points), limit=400, epsabs=1e-11)[0]


@pytest.fixture(scope="module")
def prior():
    return sharp(proportions="learned").refined(1e-6)


def mixture(prior, q):
    alpha = np.exp(np.asarray(prior.log_alpha[q], float))
    parts = [unnormalised(prior, q, p) for p in range(4)]
    masses = [quad(part, -6, 6, prior, q) for part in parts]
    return lambda z: sum(a * f(z) / m for a, f, m in zip(alpha, parts, masses, strict=True))


def test_normalisers_are_those_of_adaptive_quadrature(prior):
    expected = [
        [np.log(quad(unnormalised(prior, q, p), -6, 6, prior, q)) for p in range(4)]
        for q in range(3)
    ]
    np.testing.assert_allclose(prior.log_normaliser(), expected, atol=2e-6)


def test_a_wavelet_across_the_edge_of_the_domain_is_cut_there():
    prior = MixturePrior(1, 1, key=jax.random.key(0), reference="none", domain=(0.0, 1.0))
    values = (jnp.full((1, 1), 0.95), jnp.full((1, 1), 0.4), jnp.full((1, 1), 2.0))
    prior = eqx.tree_at(
        lambda p: tuple(getattr(p.energies.basis, n) for n in ("centre", "raw_width", "weight")),
        prior,
        values,
    )
    s = float(prior.energies.basis.width[0, 0])

    def density(z):
        x = (z - 0.95) / s
        return np.exp(2 * np.cos(x) * np.exp(-0.5 * x**2))

    expected = np.log(integrate.quad(density, 0, 1, epsabs=1e-12)[0])
    np.testing.assert_allclose(prior.log_normaliser()[0, 0], expected, atol=2e-6)


def test_wavelets_of_every_reach_are_integrated_whole():
    prior = MixturePrior(2, 2, key=jax.random.key(0), basis="mexican-hat", cells=1024)
    prior = eqx.tree_at(lambda p: p.energies.basis.tau, prior, jnp.float32(0.4))
    prior = eqx.tree_at(lambda p: p.energies.basis.weight, prior, jnp.full((2, 2), 1.5))
    assert float(jnp.max(prior.table_error())) < 1e-5


def test_the_gradient_of_the_normaliser_is_the_mean_energy_gradient(prior):
    """The exact negative phase: d log Z / dw = E[psi], by quadrature in float64."""
    grads = eqx.filter_grad(lambda p: jnp.sum(p.log_normaliser()))(prior)
    basis = prior.energies.basis
    q, p = 1, 2
    density = unnormalised(prior, q, p)

    def psi(z):
        x = (z - float(basis.centre[q, p])) / float(basis.width[q, p])
        return np.cos(float(basis.tau) * x) * np.exp(-0.5 * x**2)

    mass = quad(density, -6, 6, prior, q)
    expected = quad(lambda z: psi(z) * density(z), -6, 6, prior, q) / mass
    np.testing.assert_allclose(grads.energies.basis.weight[q, p], expected, atol=3e-6)


@pytest.mark.parametrize("q", range(3))
def test_cdf_and_inverse_are_those_of_the_mixture(prior, q):
    density = mixture(prior, q)
    u = np.array([1e-3, 0.02, 0.2, 0.5, 0.77, 0.99, 0.999])
    z = np.asarray(prior.inverse_cdf(jnp.full((len(u), 3), u[:, None], jnp.float32)), float)[:, q]
    reached = [quad(density, -6, point, prior, q) for point in z]
    np.testing.assert_allclose(reached, u, atol=3e-6)
    np.testing.assert_allclose(
        prior.cdf(jnp.full((len(z), 3), z[:, None], jnp.float32))[:, q], u, atol=3e-6
    )


def test_log_prob_is_normalised_and_minus_infinity_outside(prior):
    z = np.linspace(-6, 6, 7)
    densities = np.array([[mixture(prior, q)(v) for q in range(3)] for v in z])
    got = prior.log_prob(jnp.full((7, 3), z[:, None], jnp.float32))
    np.testing.assert_allclose(got, np.log(densities).sum(1), atol=2e-5)
    assert prior.log_prob(jnp.array([0.0, 0.0, 6.5])) == -jnp.inf


@pytest.mark.parametrize("transform", ["components", "paper"])
def test_component_selection_has_the_mixture_as_its_law(prior, transform):
    other = sharp(proportions="learned", inverse_transform=transform).with_cells(prior.cells)
    z = np.asarray(other.sample(jax.random.key(3), 20_000))
    u = np.asarray(prior.cdf(jnp.asarray(z)))
    p_values = [stats.kstest(u[:, q], "uniform").pvalue for q in range(3)]
    if transform == "components":
        assert min(p_values) > 1e-4  # three tests: a false alarm in 3,300
        np.testing.assert_allclose(other.cdf(jnp.asarray(z[:50])), u[:50], atol=1e-5)
    else:
        assert min(p_values) < 1e-4  # Algorithm 1 is visibly another law for sharp wavelets


def test_one_uniform_moves_a_coordinate_monotonically(prior):
    u = jnp.tile(jnp.linspace(0, 1, 2001)[:, None], (1, 3))
    assert (np.diff(np.asarray(prior.inverse_cdf(u)), axis=0) >= 0).all()


@pytest.mark.parametrize("kind", ["mixture", "univariate"])
def test_potential_is_log_prob_and_its_derivative(prior, kind):
    if kind == "univariate":
        prior = UnivariatePrior(2, 3, key=jax.random.key(1), activation=None, cells=512)
    z = jnp.clip(prior.sample(jax.random.key(5), 400), -1.4, 1.4)
    log_p, slope = eqx.filter_jit(lambda p: p.potential()(z))(prior)
    axes = tuple(range(1, z.ndim))
    np.testing.assert_allclose(jnp.sum(log_p, axis=axes), prior.log_prob(z), atol=2e-4)
    np.testing.assert_allclose(slope, prior.score(z), atol=2e-2)
    # The score is exactly the derivative of what is tabulated.
    tangent = jax.jit(
        lambda z: jax.jvp(lambda z: prior.potential()(z)[0], (z,), (jnp.ones_like(z),))[1]
    )(z)
    np.testing.assert_allclose(slope, tangent, atol=1e-4)


def test_beyond_the_domain_the_potential_is_the_reference(prior):
    z = jnp.array([[7.0, -8.0, 6.5]])
    np.testing.assert_allclose(prior.potential()(z)[1], -z, atol=1e-6)


def test_learned_proportions_have_gradients_and_uniform_ones_do_not(prior):
    z = prior.sample(jax.random.key(0), 32)
    grads = eqx.filter_grad(lambda p: p.mean_log_prob(z))(prior)
    assert float(jnp.max(jnp.abs(grads.logits))) > 1e-3
    assert sharp().logits is None
    np.testing.assert_allclose(jnp.exp(sharp().log_alpha), 0.25)


def test_the_mean_log_prob_is_that_of_log_prob(prior):
    z = prior.sample(jax.random.key(0), 32)
    np.testing.assert_allclose(prior.mean_log_prob(z), jnp.mean(prior.log_prob(z)), rtol=1e-5)


def test_the_score_error_is_what_the_score_is_off_by():
    """At 128 cells the score of the paper's RGB prior is off by a third, at 512 by a hundredth."""
    prior = MixturePrior(40, 5, key=jax.random.key(0), cells=128)
    z = prior.with_cells(4096).sample(jax.random.key(1), 20_000)
    tilt = prior.score(z) + z
    for cells in (64, 128, 256, 512, 1024):
        coarse = prior.with_cells(cells)
        gap = eqx.filter_jit(lambda p: p.potential()(z)[1])(coarse) + z - tilt
        true = jnp.sqrt(jnp.mean(gap**2, axis=0) / jnp.mean(tilt**2, axis=0))
        estimate = np.asarray(coarse.score_error())
        assert (estimate > 0.5 * true).all()
        assert (estimate < 20 * true + 1e-3).all()
    assert float(jnp.max(prior.table_error())) < 5e-4 < 0.1 < float(jnp.min(prior.score_error()))
    assert prior.refined(5e-4).cells == 128
    finer = prior.refined(5e-4, score_tolerance=0.1)
    assert finer.cells >= 512
    assert float(jnp.max(finer.score_error())) < 0.1


@pytest.mark.parametrize("weight", [87.0, 95.0, 300.0])
def test_large_wavelet_weights_do_not_overflow(weight):
    """exp(weight) is beyond float32; the density is not."""
    prior = sharp()
    shape = prior.energies.basis.weight.shape
    prior = eqx.tree_at(lambda p: p.energies.basis.weight, prior, jnp.full(shape, weight))
    fine = prior.with_cells(4096)
    log_z = np.asarray(fine.log_normaliser(), float)
    for q, p in ((0, 0), (1, 2)):
        energy = oracle.energy(fine.energies, q, p)
        nodes = np.linspace(-6, 6, 2_000_001)
        values = energy(nodes) + stats.norm.logpdf(nodes)
        top = values.max()
        exact = top + np.log(np.trapezoid(np.exp(values - top), nodes))
        np.testing.assert_allclose(log_z[q, p], exact, atol=2e-3)
    z = fine.sample(jax.random.key(0), 100)
    assert np.isfinite(fine.log_prob(z)).all()
    grads = eqx.filter_grad(lambda p: jnp.sum(p.log_prob(z)))(fine)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_tables_that_disagree_with_the_normalisers_count_as_wrong():
    """Too few cells show in `table_error`, through either quadrature."""
    prior = sharp(strength=3.0)
    coarse = float(jnp.max(prior.with_cells(16).table_error()))
    fine = float(jnp.max(prior.with_cells(4096).table_error()))
    assert coarse > 1e-3
    assert fine < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proportions": "equal"}, "proportions"),
        ({"inverse_transform": "fast"}, "inverse_transform"),
        ({"domain": (1.0, -1.0)}, "domain"),
        ({"basis": "haar"}, "basis"),
    ],
)
def test_bad_mixtures_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MixturePrior(2, key=jax.random.key(0), **options)


@pytest.mark.parametrize("domain", [(12.0, 16.0), (20.0, 24.0), (-30.0, -25.0)])
def test_a_domain_far_from_the_reference_is_normalised(domain):
    """The reference's mass there is beyond float32; the density is not."""
    prior = MixturePrior(2, 2, key=jax.random.key(0), cells=512, domain=domain)
    z = np.linspace(*domain, 20_001)
    points = jnp.broadcast_to(jnp.asarray(z, jnp.float32)[:, None], (len(z), 2))
    each = jax.vmap(lambda z: jax.nn.logsumexp(prior.log_components(z), axis=-1))(points)
    mass = np.trapezoid(np.exp(np.asarray(each, float)), z, axis=0)
    np.testing.assert_allclose(mass, 1, rtol=2e-3)
    assert float(jnp.max(prior.table_error())) < 1e-2
