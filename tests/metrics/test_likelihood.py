"""log p(x) against analytic evidence and quadrature, and reported errors against actual ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import KAEM, UnivariatePrior
from kaem.baselines import VAE, Encoder, NeuralEBM, NeuralPrior
from kaem.errors import UserError
from kaem.metrics.likelihood import LogLikelihood, estimators, log_likelihood
from kaem.metrics.likelihood.estimators import trapezoid
from kaem.metrics.likelihood.task import from_weights
from kaem.models import AbstractModel
from support.linear_gaussian import Linear, normal_prior

A = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
NOISE = 0.6
EVIDENCE = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3))
REPEATS = 25


GENERATOR = Linear(jnp.asarray(A, jnp.float32))


def gaussian_model(noise=NOISE):
    return KAEM(normal_prior(2, 2048), GENERATOR, noise)


def data(n):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)) @ A.T + NOISE * rng.normal(size=(n, 3))
    return x.astype(np.float32)


def assert_honest(found, exact):
    """Estimates that scatter about the truth by their errors.

    For 200 independent normal z-scores: 7 or more beyond three in 10^6 runs, a mean beyond 4.5
    errors in 10^5, and a root mean square off by a quarter, which is five of its errors.
    """
    z = (found.value - exact) / found.error
    assert len(z) == 200
    assert np.sum(np.abs(z) > 3) < 7
    # The logarithm of a mean is low by half its variance.
    z = (found.value + found.error**2 / 2 - exact) / found.error
    assert abs(z.mean()) < 4.5 / 200**0.5
    assert 0.75 < np.sqrt(np.mean(z**2)) < 1.25


CHAINS = {"samples": 4, "temperatures": 8, "steps": 100, "batch": 200}
PARTICLES = {"samples": 64, "temperatures": 60, "batch": 200}


@pytest.mark.parametrize(
    ("method", "ladder"),
    [("corrected", 8), ("steppingstone", [0, 0.01, 0.03, 0.08, 0.17, 0.3, 0.5, 0.75, 1])],
)
def test_chains_know_log_p_and_their_error(method, ladder):
    """Each of eight examples many times over: chains of their own make the repetitions independent."""
    x = np.repeat(data(8), REPEATS, axis=0)
    settings = CHAINS | {"temperatures": ladder}
    found = log_likelihood(gaussian_model(), x, method=method, key=jax.random.key(1), **settings)
    assert_honest(found, EVIDENCE.logpdf(x))
    assert found.monte_carlo_error == pytest.approx(np.sqrt(np.sum(found.error**2)) / 200)
    assert found.error.max() < 0.2


def test_importance_sampling_knows_log_p_and_its_error():
    """Proposals are shared by the examples, so that repetitions need keys, and means err together."""
    x, model = data(8), gaussian_model()
    found = [log_likelihood(model, x, key=jax.random.key(k), samples=4000) for k in range(REPEATS)]
    value, error = (
        np.concatenate([getattr(f, name) for f in found]) for name in ("value", "error")
    )
    exact = EVIDENCE.logpdf(x)
    z = (value - np.tile(exact, REPEATS)) / error
    assert np.sum(np.abs(z) > 3) < 7
    assert 0.75 < np.sqrt(np.mean(z**2)) < 1.3
    # 25 means: their spread is known to a seventh, half of the bounds' distance is three of those.
    spread = np.std([f.mean for f in found], ddof=1)
    reported = np.sqrt(np.mean([f.monte_carlo_error**2 for f in found]))
    assert 0.6 < spread / reported < 1.6
    assert found[0].effective_samples.max() < 4000


def test_batches_are_only_a_matter_of_memory():
    x, model, seen = data(8), gaussian_model(), []
    settings = {"key": jax.random.key(0), "samples": 4000}
    whole = log_likelihood(model, x, **settings)
    parts = log_likelihood(model, x, batch=3, progress=lambda *done: seen.append(done), **settings)
    np.testing.assert_allclose(parts.value, whole.value, atol=1e-4)
    assert parts.monte_carlo_error == pytest.approx(whole.monte_carlo_error, rel=1e-3)
    assert seen == [(3, 8), (6, 8), (8, 8)]


def test_particles_know_log_p_where_the_prior_ends():
    """Learned densities on [-1.5, 1.5], and data from beyond: integrals over a square."""
    prior = UnivariatePrior(1, 2, key=jax.random.key(0), cells=1024, amplitude=1.0)
    model = KAEM(prior, GENERATOR, NOISE)
    each = np.concatenate([data(6), np.array([[3.0, 1.2, 1.0], [-2.5, 3.0, 0.3]], np.float32)])
    nodes, weights = np.polynomial.legendre.leggauss(200)
    grid = 1.5 * np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    log_p = np.asarray(prior.log_prob(jnp.asarray(grid, jnp.float32)[..., None]), float)
    mass = np.exp(log_p) * np.outer(1.5 * weights, 1.5 * weights).ravel()
    assert mass.sum() == pytest.approx(1, abs=1e-4)
    exact = np.log(stats.norm.pdf(each[:, None], grid @ A.T, NOISE).prod(-1) @ mass)
    assert (exact[6:] < EVIDENCE.logpdf(each[6:]) - 1).all()  # what lies outside is missing
    settings = {"method": "ais", "key": jax.random.key(2), **PARTICLES}
    found = log_likelihood(model, np.repeat(each, REPEATS, axis=0), **settings)
    assert_honest(found, np.repeat(exact, REPEATS))


def test_the_trapezoid_of_exact_expectations_errs_by_the_square_of_the_spacing():
    x, bias, rungs = data(4).astype(float), [], np.array([8, 16, 32, 64, 128])
    for number in rungs:
        t = np.linspace(0, 1, number + 1) ** 2
        expected = np.empty((1, 1, 4, number + 1))
        for k, at in enumerate(t):
            covariance = np.linalg.inv(np.eye(2) + at * A.T @ A / NOISE**2)
            gap = x - x @ (at * A @ covariance @ A.T).T / NOISE**2
            squares = np.sum(gap**2, 1) + np.trace(A @ covariance @ A.T)
            expected[0, 0, :, k] = -squares / (2 * NOISE**2) - 1.5 * np.log(2 * np.pi * NOISE**2)
        value, influence = trapezoid(t, expected)
        assert not influence.any()
        bias.append(np.abs(value - EVIDENCE.logpdf(x)))
    slopes = np.polyfit(np.log(rungs), np.log(bias), 1)[0]
    assert ((slopes > -2.2) & (slopes < -1.8)).all()


def test_the_trapezoid_shows_the_bias_that_the_correction_removes():
    x = np.repeat(data(8), REPEATS, axis=0)
    settings = CHAINS | {"key": jax.random.key(3)}
    found = log_likelihood(gaussian_model(), x, method="trapezoid", **settings)
    assert found.mean < EVIDENCE.logpdf(x).mean() - 5 * found.monte_carlo_error


def test_a_vae_proposes_from_its_encoder():
    encoder = Encoder((3,), 2, key=jax.random.key(0), widths=())
    covariance = np.linalg.inv(np.eye(2) + A.T @ A / NOISE**2)
    head = np.concatenate([(covariance @ A.T / NOISE**2).T, np.zeros((3, 2))], axis=1)
    bias = np.concatenate([[0.2, -0.1], np.log(1.5 * np.diag(covariance))])  # not quite right
    encoder = eqx.tree_at(
        lambda e: (e.head, e.head_bias),
        encoder,
        tuple(jnp.asarray(part, jnp.float32) for part in (head, bias)),
    )
    x = np.repeat(data(8), REPEATS, axis=0)
    exact = EVIDENCE.logpdf(x)
    model = VAE(encoder, GENERATOR, NOISE)
    found = log_likelihood(model, x, key=jax.random.key(4), samples=400)
    assert_honest(found, exact)
    blind = log_likelihood(gaussian_model(), x[::REPEATS], key=jax.random.key(4), samples=4000)
    assert found.error.max() < 0.5 * 10**0.5 * blind.error.min()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["importance", "ais"])
def test_a_vae_with_normal_posteriors_knows_log_p_closely(method):
    """The refined guess is the posterior: what is left is the prior's share, and rounding."""
    model = VAE(Encoder((3,), 2, key=jax.random.key(0), widths=()), GENERATOR, NOISE)
    x = np.repeat(data(8), REPEATS, axis=0)
    effort = {"samples": 256} | ({"temperatures": 60} if method == "ais" else {})
    found = log_likelihood(model, x, method=method, key=jax.random.key(5), **effort)
    assert_honest(found, EVIDENCE.logpdf(x))
    assert found.error.max() < 0.05


class Curved(Linear):
    """x = A z + c (z_0^2, z_0 z_1, sin 2 z_1): its posteriors are not normal, for larger c bimodal."""

    curvature: float = 0.2

    def __call__(self, z):
        a, b = z.reshape(-1)
        curved = jnp.stack([a**2, a * b, jnp.sin(2 * b)])
        return self.matrix @ z.reshape(-1) + self.curvature * curved


def curved_model(curvature, each):
    """A VAE whose encoder knows nothing, and log p of examples by quadrature."""
    generator = Curved(GENERATOR.matrix, curvature=curvature)
    model = VAE(Encoder((3,), 2, key=jax.random.key(0), widths=()), generator, NOISE)
    z = np.linspace(-8, 8, 641)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    means = np.asarray(jax.vmap(generator)(jnp.asarray(grid, jnp.float32)), float)
    mass = stats.norm.pdf(grid).prod(-1) * (z[1] - z[0]) ** 2
    return model, np.log(stats.norm.pdf(each[:, None], means, NOISE).prod(-1) @ mass)


@pytest.mark.slow
def test_particles_of_a_vae_know_log_p_where_no_normal_is_right():
    model, exact = curved_model(0.2, data(8))
    x = np.repeat(data(8), REPEATS, axis=0)
    effort = PARTICLES | {"samples": 256}
    found = log_likelihood(model, x, method="ais", key=jax.random.key(5), **effort)
    assert found.error.min() > 1e-3  # there is something to be honest about
    assert_honest(found, np.repeat(exact, REPEATS))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["importance", "ais"])
def test_the_prior_defends_against_modes_that_a_guess_has_missed(method):
    """Weights are unbiased, whatever was missed: their mean over 200 runs is p(x), within four errors."""
    model, exact = curved_model(0.6, data(8))
    x = np.repeat(data(8), REPEATS, axis=0)
    effort = {"samples": 2000} if method == "importance" else {"samples": 64, "temperatures": 30}
    found = log_likelihood(model, x, method=method, key=jax.random.key(5), **effort)
    ratio = np.exp(found.value - np.repeat(exact, REPEATS))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / 200**0.5
    assert ratio.std() < 0.3


@pytest.mark.slow
def test_a_neural_energy_is_normalised_on_the_way():
    """Quadrature of the tilted normal, and of its joint with the data."""
    prior = NeuralPrior(2, key=jax.random.key(0), widths=(8,))
    prior = eqx.tree_at(lambda p: p.weights[-1], prior, 2 * prior.weights[-1])
    model = NeuralEBM(prior, GENERATOR, NOISE)
    x = np.repeat(data(8), REPEATS, axis=0)
    z = np.linspace(-8, 8, 321)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    log_p = np.asarray(prior.potential(jnp.asarray(grid, jnp.float32))[0], float)
    mass = np.exp(log_p) / np.exp(log_p).sum()
    density = stats.norm.pdf(x[::REPEATS, None], grid @ A.T, NOISE).prod(-1)
    exact = np.repeat(np.log(density @ mass), REPEATS)
    assert np.abs(exact - EVIDENCE.logpdf(x)).max() > 0.3  # the tilt matters
    found = log_likelihood(model, x, method="ais", key=jax.random.key(6), **PARTICLES)
    z = (found.value - exact) / found.error
    assert np.sum(np.abs(z) > 3) < 7
    # All share the normaliser's error, which the mean's contains.
    assert abs(found.mean - exact.mean()) < 4.5 * found.monte_carlo_error
    assert found.monte_carlo_error > 1.2 * np.sqrt(np.sum(found.error**2)) / 200


def test_collapsed_weights_have_no_error_to_report():
    found = log_likelihood(gaussian_model(1e-3), data(3), key=jax.random.key(0), samples=100)
    assert np.isinf(found.error).all()
    assert np.isinf(found.mean_error)
    assert (found.effective_samples < 4).all()


def test_chains_that_did_not_mix_have_no_error_to_report(monkeypatch):
    def stuck(model, x, t, chains, steps, key):
        """l of chains that stay near where they started."""
        start = jax.random.normal(key, (1, len(t), chains, len(x)))
        return start + 0.01 * jax.random.normal(key, (steps, len(t), chains, len(x)))

    monkeypatch.setattr(estimators, "_tempered", stuck)
    for method in ("trapezoid", "corrected", "steppingstone"):
        found = log_likelihood(gaussian_model(), data(3), method=method, key=jax.random.key(0))
        assert np.isinf(found.error).all()


def test_errors_of_the_mean_add_up():
    rng = np.random.default_rng(0)
    n, truth = 4000, rng.normal(0, 2.0, 4000)
    value = truth + rng.normal(0, 1.0, n) + 0.7
    shared = np.hypot(0.5, 1.0 / n**0.5)  # all err by a common normal of deviation 0.5
    own = LogLikelihood("ais", value, np.ones(n), np.ones(n), n**-0.5, 10, False)
    both = LogLikelihood("ais", value, np.full(n, 1.25**0.5), np.ones(n), shared, 10, False)
    for found in (own, both):
        assert found.examples_error == pytest.approx(2 / n**0.5, rel=0.06)
    assert own.mean_error == pytest.approx(np.std(value, ddof=1) / n**0.5)
    assert both.mean_error == pytest.approx(np.hypot(0.5, 5**0.5 / n**0.5), rel=0.01)


def test_bits_are_of_bytes_or_of_nothing():
    """The uniform density on [0, 1] says nothing about a byte: eight bits."""
    one = np.ones(2)
    assert LogLikelihood("ais", 0 * one, one, one, 0.1, 12, True).bits_per_dimension == 8
    plain = LogLikelihood("ais", -12 * np.log(2) * one, one, one, 0.1, 12, False)
    assert plain.bits_per_dimension == pytest.approx(1)
    x = jnp.asarray(255 * np.abs(data(8)) / 5, jnp.uint8)
    found = log_likelihood(gaussian_model(), x, key=jax.random.key(0), samples=4000)
    as_floats = log_likelihood(gaussian_model(), x / 255, key=jax.random.key(0), samples=4000)
    assert (found.from_bytes, as_floats.from_bytes) == (True, False)
    np.testing.assert_allclose(found.value, as_floats.value, rtol=1e-6)


class NoLatents(AbstractModel):
    data_shape = (3,)
    output = "identity"

    def sample(self, key, n):
        return jnp.zeros((n, 3))

    def usual_learner(self):
        return None


def test_what_cannot_be_asked_is_refused():
    key, x, model = jax.random.key(0), data(3), gaussian_model()
    neural = NeuralEBM(NeuralPrior(2, key=key, widths=(4,)), GENERATOR, NOISE)
    with pytest.raises(UserError, match=r"needs a model with latents.*NoLatents.*samples"):
        log_likelihood(NoLatents(), x, key=key)
    for method in ("importance", "trapezoid", "corrected", "steppingstone"):
        with pytest.raises(UserError, match=r"not normalised.*use method 'ais'"):
            log_likelihood(neural, x, key=key, method=method)
    with pytest.raises(ValueError, match="unknown method 'elbo'; choose one of importance"):
        log_likelihood(model, x, key=key, method="elbo")
    with pytest.raises(ValueError, match="no temperatures or steps"):
        log_likelihood(model, x, key=key, temperatures=5, steps=3)
    with pytest.raises(ValueError, match="steps of at least 8, got 2"):
        log_likelihood(model, x, key=key, method="corrected", steps=2)
    with pytest.raises(ValueError, match=r"data of shape \(3,\), got examples of shape \(3, 2\)"):
        log_likelihood(model, x[:, :2], key=key)
    with pytest.raises(ValueError, match="increase strictly from 0 to 1"):
        log_likelihood(model, x, key=key, method="ais", temperatures=[0, 0.5])


def test_no_error_is_below_the_rounding_of_weights():
    """Equal weights have no variance, but the logarithm of each is known to a unit of its last place."""
    found = from_weights(np.full((8, 2), np.float32(-3000.1), float))
    assert (found.error >= 3000 * 2.0**-23).all()
    assert (found.error < 0.01).all()
