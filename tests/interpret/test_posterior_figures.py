"""Inference, densities, power posteriors and temperatures against Gaussians, quadrature and settings."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kaem import KAEM, MixturePrior, UserError
from kaem.baselines import VAE, Encoder, NeuralEBM, NeuralPrior
from kaem.interpret.figures.densities import density_curves, density_sheet
from kaem.interpret.figures.power_posteriors import marginals, power_posterior_figure
from kaem.interpret.figures.reconstructions import (
    Reconstructions,
    reconstruction_sheet,
    reconstructions,
)
from kaem.interpret.figures.temperatures import (
    Trapezoids,
    temperature_figure,
    temperatures,
    trapezoids,
)
from kaem.interpret.power_posteriors import power_posteriors
from kaem.learning import Langevin
from kaem.models import AbstractModel
from kaem.priors import NormalPrior
from kaem.runs import RunFolder
from kaem.settings import Settings
from support.linear_gaussian import Linear, normal_prior
from support.pictures import assert_drawn

A = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
NOISE = 0.6
X = np.array([1.5, -1.0, 0.3], np.float32)
MODEL = KAEM(normal_prior(2, 2048), Linear(jnp.asarray(A, jnp.float32)), NOISE)


def power_posterior(t, x=X):
    """Mean and covariance of p(z) p(x|z)^t where both are normal."""
    covariance = np.linalg.inv(np.eye(2) + t * A.T @ A / NOISE**2)
    return t * covariance @ A.T @ x / NOISE**2, covariance


def assert_normal(z, mean, covariance, worth):
    """Means within 4.5 standard errors of `worth` draws (10^-5 each), variances within 4.5 of theirs."""
    np.testing.assert_array_less(
        np.abs(z.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / worth), 4.5
    )
    ratio = np.cov(z.T) / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    exact = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(ratio, exact, atol=4.5 * (2 / worth) ** 0.5)


def test_infer_draws_from_the_posterior():
    """Chains of one example share their proposals but soon forget them: 600 are worth 300 at least."""
    other = -X
    x = np.stack([X, other] * 600)
    found = MODEL.infer(x, jax.random.key(0), proposals=256, steps=40, batch=500)
    assert found.latents.shape == (1200, 2)
    for example, rows in ((X, slice(0, None, 2)), (other, slice(1, None, 2))):
        assert_normal(found.latents[rows], *power_posterior(1, example), worth=300)
    assert 0.3 < found.acceptance.mean() < 0.8


def test_infer_finds_latents_that_no_proposal_has():
    """A likelihood so sharp that the best of two proposals is far off: the chain must get there."""
    sharp = KAEM(MODEL.prior, MODEL.generator, 0.05)
    x = np.tile(A @ [2.0, -2.0], (16, 1)).astype(np.float32)
    found = sharp.infer(x, jax.random.key(1), proposals=2, steps=400)
    np.testing.assert_allclose(found.latents.mean(axis=0), [2, -2], atol=0.1)


def test_infer_of_rivals():
    generator = MODEL.generator
    vae = VAE(Encoder((3,), 2, key=jax.random.key(0), widths=(4,)), generator, NOISE)
    x = np.tile(X, (4000, 1))
    mean, log_variance = (np.asarray(a[0]) for a in vae.encoder(jnp.asarray(X)[None]))
    found = vae.infer(x, jax.random.key(2), batch=4000)
    assert_normal(found.latents, mean, np.diag(np.exp(log_variance)), worth=4000)
    assert np.isnan(found.acceptance).all()

    # A tilt of b z makes the normal prior one around b.
    tilted = NeuralPrior(2, key=jax.random.key(1), widths=(4,))
    b = np.array([0.8, -0.5])
    ebm = NeuralEBM(_Tilted(tilted, jnp.asarray(b, jnp.float32)), generator, NOISE)
    _, covariance = power_posterior(1)
    found = ebm.infer(np.tile(X, (600, 1)), jax.random.key(3), proposals=256, steps=40, batch=600)
    mean = covariance @ (A.T @ X / NOISE**2 + b)
    assert_normal(found.latents, mean, covariance, worth=300)


class _Tilted(NeuralPrior):
    """f(z) = b z."""

    slope: jax.Array = None  # type: ignore[assignment]

    def __init__(self, prior, slope):
        for name in ("weights", "biases", "shape", "steps", "step_size", "noise_scale"):
            setattr(self, name, getattr(prior, name))
        self.slope = slope

    def tilt(self, z):
        return z @ self.slope


class _NoLatents(AbstractModel):
    data_shape: tuple[int, ...] = (3,)
    output: str = "identity"

    def sample(self, key, n):
        return jnp.zeros((n, 3))

    def usual_learner(self):
        return Langevin()


def test_what_cannot_be_inferred_is_said():
    with pytest.raises(UserError, match="needs a model with latents, which a _NoLatents has not"):
        reconstructions(_NoLatents(), X[None], np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"shape \(3,\), got examples of shape \(1, 4\)"):
        MODEL.infer(np.zeros((1, 4)), jax.random.key(0))
    with pytest.raises(ValueError, match="2 steps"):
        MODEL.infer(X[None], jax.random.key(0), steps=1)


def test_reconstructions_are_decoded_latents(tmp_path):
    sharp = KAEM(MODEL.prior, MODEL.generator, 0.05)
    z = np.random.default_rng(0).normal(size=(16, 2))
    x = (z @ A.T).astype(np.float32)
    latents = sharp.infer(x, jax.random.key(0), proposals=2, steps=400).latents
    found = reconstructions(sharp, x, latents)
    np.testing.assert_allclose(found.squared_error, np.mean((found.x - found.made) ** 2, axis=1))
    # Of the three dimensions of noise that the latents could explain, two are: 2/3 of sigma squared.
    assert found.squared_error.mean() < 2 * 0.05**2
    with pytest.raises(UserError, match="images"):
        reconstruction_sheet(found, tmp_path / "r.png")


@pytest.mark.parametrize(("channels", "suffix"), [(1, "png"), (3, "svg")])
def test_reconstruction_sheet_is_written(tmp_path, channels, suffix):
    x = np.random.default_rng(0).uniform(size=(5, 6, 6, channels))
    path = tmp_path / f"r.{suffix}"
    reconstruction_sheet(Reconstructions(x, 1 - x, np.mean((2 * x - 1) ** 2, (1, 2, 3))), path)
    assert_drawn(path, 7.2 / 10 * 5 + 0.5)


@pytest.fixture(scope="module")
def mixture():
    prior = MixturePrior(3, 4, key=jax.random.key(0), proportions="learned", cells=256)
    weight = 2 * jax.random.normal(jax.random.key(1), prior.energies.basis.weight.shape)
    prior = eqx.tree_at(lambda p: p.energies.basis.weight, prior, weight)
    logits = jax.random.normal(jax.random.key(2), prior.logits.shape)
    return eqx.tree_at(lambda p: p.logits, prior, logits)


def test_density_curves_of_a_mixture(mixture):
    """Components sum to the density and weigh alpha; samples scatter about it; order is kept."""
    prior = mixture
    latents = np.random.default_rng(0).normal(0.5, 0.3, (5000, 4))
    order = [2, 0, 3]
    curves = density_curves(prior, points=2401, order=order, latents=latents, key=jax.random.key(4))
    assert [c.place for c in curves] == [(2,), (0,), (3,)]
    alpha = np.exp(np.asarray(prior.log_alpha))
    for q, c in zip(order, curves, strict=True):
        np.testing.assert_allclose(c.components.sum(axis=0), c.density, atol=2e-5)
        np.testing.assert_allclose(np.trapezoid(c.components, c.z, axis=1), alpha[q], atol=1e-4)
        # 60 bins: chi-squared beyond 110 in 10^-4 of all keys.
        cumulative = np.concatenate(
            [[0], np.cumsum(np.diff(c.z) * (c.density[1:] + c.density[:-1]) / 2)]
        )
        width = np.diff(c.samples.edges)
        expected = 16_384 * np.diff(np.interp(c.samples.edges, c.z, cumulative))
        seen = 16_384 * c.samples.heights * width
        large = expected > 5
        assert np.sum((seen - expected)[large] ** 2 / expected[large]) < 110
        # The aggregated posterior is what was given: a normal, to within 5 of 5,000 draws' errors.
        height = stats.norm(0.5, 0.3).pdf(c.posterior.centres)
        error = np.sqrt(height / (5000 * np.diff(c.posterior.edges))) + 0.02
        assert (np.abs(c.posterior.heights - height) < 5 * error).all()
        np.testing.assert_allclose(np.sum(c.posterior.heights * np.diff(c.posterior.edges)), 1)
    with pytest.raises(ValueError, match="distinct indices from 0 to 3"):
        density_curves(prior, order=[1, 1])


def test_density_sheet_of_a_mixture_is_written(mixture, tmp_path):
    curves = density_curves(mixture, order=[1], latents=np.zeros((9, 4)))
    density_sheet(mixture, curves, tmp_path / "d.svg")
    assert_drawn(tmp_path / "d.svg", 1.7 * 2 + 0.4)


@pytest.fixture(scope="module")
def powers():
    return power_posteriors(
        MODEL, X, jax.random.key(5), t=(0, 0.1, 0.4, 1), particles=1024, moves=20
    )


def test_power_posteriors_of_a_gaussian(powers):
    """Particles are worth half their number after mixing; E_t, log p(x) and KL are known."""
    for k, t in enumerate(powers.t):
        mean, covariance = power_posterior(t)
        assert_normal(powers.latents[k], mean, covariance, worth=512)
        residual = X - A @ mean
        squares = residual @ residual + np.trace(A @ covariance @ A.T)
        exact = -squares / (2 * NOISE**2) - MODEL.log_constant
        error = powers.log_likelihood[k].std() / 512**0.5
        assert abs(powers.expected[k] - exact) < 4.5 * error
        variance = np.diag(covariance)
        kl = 0.5 * (variance + mean**2 - 1 - np.log(variance))
        np.testing.assert_allclose(powers.moved[k], kl, atol=0.12)
    evidence = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3)).logpdf(X)
    np.testing.assert_allclose(powers.log_evidence[-1], evidence, atol=0.2)
    np.testing.assert_allclose(powers.made, A @ power_posterior(1)[0], atol=0.1)
    np.testing.assert_allclose(powers.acceptance[1:], 0.574, atol=0.1)
    # The narrower and farther of the two marginals is named first.
    mean, covariance = power_posterior(1)
    kl = mean**2 + np.diag(covariance) - np.log(np.diag(covariance))
    assert powers.most_moved(2) == [(int(np.argmax(kl)),), (int(np.argmin(kl)),)]


def test_marginals_are_the_prior_and_the_posteriors(powers, tmp_path):
    """Kernels of 1,024 particles: errors of a tenth of the peak, by far beyond their noise."""
    for one in power_posterior_figure(MODEL, powers, tmp_path / "p.svg"):
        (q,) = one.place
        for k, t in enumerate(powers.t):
            mean, covariance = power_posterior(t)
            exact = stats.norm(mean[q], covariance[q, q] ** 0.5).pdf(one.z)
            atol = 1e-4 if k == 0 else 0.15 * exact.max()
            np.testing.assert_allclose(one.densities[k], exact, atol=atol)
    assert_drawn(tmp_path / "p.svg", 7.2)


def test_marginals_of_a_normal_prior(powers):
    """At t = 0 the marginals of a VAE's latents are its prior's, which is known."""
    vae = VAE(Encoder((3,), 2, key=jax.random.key(0), widths=(4,)), MODEL.generator, NOISE)
    assert type(vae.prior) is NormalPrior
    for one in marginals(vae, powers, [(0,), (1,)]):
        np.testing.assert_allclose(one.densities[0], stats.norm.pdf(one.z), atol=1e-5)


def test_marginals_keep_their_mass_within_the_domain(powers):
    """A uniform at the edge of the domain stays one there: kernels alone would lose half of it."""
    edge = float(MODEL.prior.domain[0, 1])
    z = np.random.default_rng(0).uniform(edge - 1, edge, powers.latents.shape)
    (one,) = marginals(MODEL, powers._replace(latents=z), [(0,)], points=2001)
    inside = one.z > edge - 0.5
    np.testing.assert_allclose(one.densities[-1][inside], 1, atol=0.25)


def test_trapezoids_are_the_integral():
    ladder = np.array([0, 0.3, 1.0])
    x = np.stack([X, -X])
    found = trapezoids(MODEL, x, ladder, jax.random.key(6), particles=1024)
    np.testing.assert_allclose(found.t, ladder, atol=1e-6)
    exact = []
    for t in found.t:
        mean, covariance = power_posterior(t)
        squares = np.sum((X - A @ mean) ** 2) + np.trace(A @ covariance @ A.T)
        exact.append(-squares / (2 * NOISE**2) - MODEL.log_constant)
    np.testing.assert_allclose(found.expected, exact, atol=0.35)
    np.testing.assert_allclose(found.integral, np.trapezoid(exact, found.t), atol=0.25)
    evidence = stats.multivariate_normal(np.zeros(3), A @ A.T + NOISE**2 * np.eye(3)).logpdf(X)
    np.testing.assert_allclose(found.log_evidence, evidence, atol=0.15)
    np.testing.assert_allclose(np.trapezoid(found.fine_expected, found.fine_t), evidence, atol=0.35)


def thermodynamic_run(path, history, **learner):
    """A run folder with nothing but settings and a history."""
    if "kind" not in learner:
        learner |= {"kind": "thermodynamic", "temperatures": 3}
    values = {"prior": {"latents": 2}, "learner": learner, "training": {"steps": 100}}
    run = RunFolder(path)
    record = {"what": "digits-kan", "settings": Settings.from_dict(values).to_dict()}
    record |= {"data": {"shape": [9, 8, 8, 1]}, "created": "today", "versions": {}}
    run.config_file.write_text(json.dumps(record))
    run.history_file.write_text("".join(json.dumps(record) + "\n" for record in history))
    return run


SWAPS = {"swap_0": 0.9, "swap_1": 0.5, "swap_2": 0.7}


def test_temperatures_are_those_logged(tmp_path):
    history = [
        {"step": 50, "t_1": 0.2, "t_2": 0.5, **SWAPS},
        {"step": 100, "t_1": 0.6, "t_2": 0.8, **SWAPS, "swap_1": 0.4},
    ]
    found = temperatures(thermodynamic_run(tmp_path, history))
    np.testing.assert_array_equal(found.steps, [50, 100])
    np.testing.assert_array_equal(found.ladder, [[0, 0.2, 0.5, 1], [0, 0.6, 0.8, 1]])
    np.testing.assert_array_equal(found.swap_rates, [[0.9, 0.5, 0.7], [0.9, 0.4, 0.7]])
    # Half a cosine from 2 to 0.5 (eq. p-anneal without cycles).
    exact = 2 - 1.5 * np.sin(np.pi * found.updates / 200) ** 2
    np.testing.assert_allclose(found.exponent, exact, atol=1e-5)
    bins = Trapezoids(
        np.array([0, 0.5, 1]), np.array([-9, -2, -1]), np.array([0, 1]), np.array([-9, -1]),
        -3.5, -3.0, 2,
    )  # fmt: skip
    for suffix in ("png", "svg"):
        temperature_figure(found, tmp_path / f"t.{suffix}", bins)
        assert_drawn(tmp_path / f"t.{suffix}", 7.2)


def test_temperatures_that_were_not_logged_follow_from_the_settings(tmp_path):
    history = [{"step": 50, **SWAPS}, {"step": 100, **SWAPS}]
    found = temperatures(thermodynamic_run(tmp_path, history))
    share = np.arange(4) / 3
    np.testing.assert_allclose(found.ladder, [share**1.25, share**0.5], atol=1e-6)

    fixed = {"schedule": "fixed", "ladder": [0, 0.1, 0.4, 1]}
    found = temperatures(thermodynamic_run(tmp_path, history, **fixed))
    np.testing.assert_allclose(found.ladder, [[0, 0.1, 0.4, 1]] * 2, atol=1e-6)
    assert found.exponent is None
    temperature_figure(found, tmp_path / "t.png")
    assert_drawn(tmp_path / "t.png", 7.2)

    found = temperatures(thermodynamic_run(tmp_path, history, schedule="power", p_start=3.0))
    np.testing.assert_allclose(found.ladder, [share**3] * 2, atol=1e-6)
    np.testing.assert_array_equal(found.exponent, 3)


def test_runs_without_temperatures_say_what_has_them(tmp_path):
    with pytest.raises(UserError, match=r"learner\.kind=thermodynamic"):
        temperatures(thermodynamic_run(tmp_path, [], kind="langevin"))
    with pytest.raises(UserError, match="no history"):
        temperatures(thermodynamic_run(tmp_path, []))
