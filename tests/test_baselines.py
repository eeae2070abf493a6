"""The rivals against what is known: analytic evidence and KL, Gaussian chains, exact resuming."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import kaem
from kaem import CNN, VAE, Encoder, EvidenceBound, Langevin, NeuralEBM, NeuralPrior
from kaem.baselines.neural_ebm import langevin
from kaem.baselines.vae import kl_from_normal
from kaem.generators import AbstractGenerator
from kaem.training import OptimiserConfig, TrainingDiverged


class Linear(AbstractGenerator):
    """x = W z + b, whose evidence is Gaussian."""

    weight: jax.Array
    bias: jax.Array
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, z):
        return self.weight @ z + self.bias


W = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
B = np.array([0.1, -0.2, 0.3])
NOISE = 0.5


def linear_vae(key=0):
    generator = Linear(jnp.asarray(W, jnp.float32), jnp.asarray(B, jnp.float32), (3,))
    encoder = Encoder((3,), 2, key=jax.random.key(key), widths=())
    return VAE(encoder, generator, noise=NOISE)


def test_samples_with_noise_are_draws_of_the_marginal():
    """x = W z + b + noise is normal; any dependence of noise and latents would change how."""
    model, key = linear_vae(), jax.random.key(5)
    x = np.asarray(model.sample_with_noise(key, 4000), np.float64) - B
    covariance = W @ W.T + NOISE**2 * np.eye(3)
    squares = np.einsum("ni,ij,nj->n", x, np.linalg.inv(covariance), x)
    assert stats.kstest(squares, stats.chi2(3).cdf).pvalue > 1e-4  # or a false alarm
    noise = x + B - np.asarray(model.sample(key, 4000))
    z = np.asarray(model.prior.sample(key, 4000))
    correlation = np.corrcoef(noise.T, z.T)[:3, 3:]
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)  # five standard errors


def with_exact_posterior(model):
    """The encoder whose q(z | x) is the posterior: linear in x, of constant variance."""
    covariance = np.linalg.inv(np.eye(2) + W.T @ W / NOISE**2)
    gain = covariance @ W.T / NOISE**2
    # A diagonal q is the posterior where its covariance is diagonal: rotate the latents.
    _, rotation = np.linalg.eigh(covariance)
    gain, weight = rotation.T @ gain, W @ rotation
    variances = np.diag(rotation.T @ covariance @ rotation)
    head = np.concatenate([gain.T, np.zeros((3, 2))], axis=1)
    bias = np.concatenate([-gain @ B, np.log(variances)])
    return eqx.tree_at(
        lambda m: (m.encoder.head, m.encoder.head_bias, m.generator.weight),
        model,
        tuple(jnp.asarray(a, jnp.float32) for a in (head, bias, weight)),
    )


def data(n):
    rng = np.random.default_rng(1)
    z = rng.normal(size=(n, 2))
    return (z @ W.T + B + NOISE * rng.normal(size=(n, 3))).astype(np.float32)


def bound(model, x, draws, key=0):
    """The mean ELBO of each example over many draws, and its standard error."""
    mean, log_variance = model.encoder(x)
    xi = jax.random.normal(jax.random.key(key), (draws, *mean.shape))
    z = mean + jnp.exp(0.5 * log_variance) * xi
    made = jax.vmap(model.decode)(z)
    values = np.asarray(model.log_likelihood(x, made) - kl_from_normal(mean, log_variance), float)
    return values.mean(0), values.std(0) / np.sqrt(draws)


def evidence(model, x, draws, key=1):
    """log p(x) of each example by importance sampling from the prior, and its standard error."""
    z = model.prior.sample(jax.random.key(key), draws)
    log_p = np.asarray(model.log_likelihood(x[:, None], model.decode(z)[None]), float)
    top = log_p.max(1, keepdims=True)
    weights = np.exp(log_p - top)
    mean = weights.mean(1)
    return np.log(mean) + top[:, 0], weights.std(1) / mean / np.sqrt(draws)


def test_the_kl_is_that_of_quadrature():
    mean, log_variance = np.array([[0.7, -1.3]]), np.array([[-0.8, 0.9]])
    total = 0.0
    for m, v in zip(mean[0], np.exp(log_variance[0]), strict=True):
        q, p = stats.norm(m, np.sqrt(v)), stats.norm()
        total += integrate.quad(
            lambda z, q=q, p=p: q.pdf(z) * (q.logpdf(z) - p.logpdf(z)), -30, 30
        )[0]
    np.testing.assert_allclose(kl_from_normal(mean, log_variance), total, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_elbo_never_exceeds_the_evidence(seed):
    """Ten examples, five standard errors: a false alarm in about 10^5 tests."""
    model, x = linear_vae(seed), data(10)
    elbo, elbo_error = bound(model, x, 4_000)
    estimate, error = evidence(model, x, 200_000)
    exact = stats.multivariate_normal(B, W @ W.T + NOISE**2 * np.eye(3)).logpdf(x)
    assert (np.abs(estimate - exact) < 5 * error).all()  # the oracle is one
    assert (elbo < estimate + 5 * np.hypot(error, elbo_error)).all()
    assert (elbo < exact - 0.05).any()  # an untrained encoder leaves a gap


def test_the_exact_posterior_closes_the_gap():
    model, x = with_exact_posterior(linear_vae()), data(10)
    elbo, error = bound(model, x, 20_000)
    exact = stats.multivariate_normal(B, W @ W.T + NOISE**2 * np.eye(3)).logpdf(x)
    assert (np.abs(elbo - exact) < 5 * error + 1e-4).all()


def test_training_a_vae_approaches_the_evidence():
    """Only the encoder matters here: the generator starts at the truth, and the gap must shrink."""
    x = data(2_000)
    _, history = kaem.fit(
        linear_vae(),
        x,
        posterior=EvidenceBound(),
        optimiser=OptimiserConfig(generator_rate=1e-2),
        steps=600,
        batch_size=200,
        log_every=100,
    )
    exact = stats.multivariate_normal(B, W @ W.T + NOISE**2 * np.eye(3)).logpdf(x).mean()
    assert history[0]["elbo"] < exact - 0.3
    # A diagonal q cannot close it all, and the generator may overfit a little.
    assert exact - 0.3 < history[-1]["elbo"] < exact + 0.1
    assert {"log_likelihood", "kl", "elbo", "reconstruction", "loss"} <= set(history[-1])


def test_beta_weighs_the_kl():
    model, x = linear_vae(), jnp.asarray(data(50))
    key = jax.random.key(3)
    values = {}
    for beta in (0.0, 0.01, 1.0):
        value, (info, _) = EvidenceBound(beta).objective(model, x, key, {}, 0.0)
        values[beta] = float(value)
        np.testing.assert_allclose(value, info["log_likelihood"] - beta * info["kl"], rtol=1e-5)
    assert values[0.0] > values[0.01] > values[1.0]
    with pytest.raises(ValueError, match="beta"):
        EvidenceBound(-1.0)


@pytest.mark.slow
def test_a_vae_of_images_reconstructs_what_it_was_trained_on():
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, (4, 8, 8, 1)).astype(np.float32)
    x = patterns[rng.integers(0, 4, 400)]
    key = jax.random.key(0)
    model = VAE(
        Encoder((8, 8, 1), 4, key=key, widths=(8, 16)),
        CNN(4, (8, 8, 1), key=key, widths=(16,)),
        noise=0.2,
    )
    model, _ = kaem.fit(model, x, posterior=EvidenceBound(), steps=400, batch_size=50)
    error = np.mean((np.asarray(model.reconstruct(jnp.asarray(patterns))) - patterns) ** 2)
    assert error < 0.02  # a constant image is at 0.25


def test_langevin_on_a_quadratic_energy_is_its_gaussian():
    """z' = z - eta P z + sqrt(2 eta) xi has covariance P^-1 (I - eta P / 2)^-1, exactly."""
    precision = np.array([[2.0, 0.6], [0.6, 1.0]])
    for step, noise in ((0.2, 1.0), (0.05, 1.0), (0.2, 0.5)):
        z = langevin(
            lambda z: -z @ jnp.asarray(precision),
            jnp.zeros((20_000, 2)),
            jax.random.key(0),
            steps=int(20 / step),
            step_size=step,
            noise_scale=noise,
        )
        law = noise**2 * np.linalg.inv(precision @ (np.eye(2) - step / 2 * precision))
        scale = np.sqrt(np.diag(law))
        n = len(z)  # 4.5 standard errors: a false alarm in 10^5 for each number
        assert (np.abs(np.mean(z, 0)) < 4.5 * scale / np.sqrt(n)).all()
        spread = np.sqrt((np.outer(scale, scale) ** 2 + law**2) / n)
        assert (np.abs(np.cov(np.asarray(z, float).T) - law) < 4.5 * spread).all()


def test_the_potential_is_the_tilted_normal_and_its_gradient():
    prior = NeuralPrior(5, key=jax.random.key(0), widths=(8, 8))
    z = jax.random.normal(jax.random.key(1), (7, 5))
    value, score = prior.potential(z)
    x = np.asarray(z, float)
    for weight, bias in list(zip(prior.weights, prior.biases, strict=True))[:-1]:
        x = x @ np.asarray(weight, float) + np.asarray(bias, float)
        x = x / (1 + np.exp(-x))
    f = (x @ np.asarray(prior.weights[-1], float))[:, 0]
    np.testing.assert_allclose(value, f - 0.5 * np.sum(np.asarray(z) ** 2, 1), rtol=1e-4, atol=1e-5)
    expected = jax.grad(lambda z: jnp.sum(prior.potential(z)[0]))(z)
    np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-5)


def test_the_energy_network_is_the_papers():
    prior = NeuralPrior(81, key=jax.random.key(0))
    assert [w.shape for w in prior.weights] == [(81, 200), (200, 200), (200, 1)]
    assert (prior.steps, prior.step_size, prior.noise_scale) == (60, 0.16, 1.0)


def test_contrastive_divergence_has_the_gradient_of_the_likelihood():
    """f = w z in one dimension: p is N(w, 1), and d/dw of the mean log-density is mean(z) - w."""
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(1,), steps=400, step_size=0.05)
    # One swish unit far in its linear part: f(z) = w (z + 50) to within e^-40.
    prior = eqx.tree_at(
        lambda p: (p.weights, p.biases),
        prior,
        (
            (jnp.ones((1, 1)), jnp.array([[0.4]])),
            (jnp.array([50.0]), jnp.zeros(1)),
        ),
    )
    z = jnp.full((20_000, 1), 1.5)
    grads = eqx.filter_grad(lambda p: p.mean_log_prob(z, jax.random.key(2)))(prior)
    # Estimated from 20,000 negatives of standard deviation 1.01: 4.5 errors.
    assert abs(float(grads.weights[1][0, 0]) - (1.5 - 0.4)) < 4.5 * 1.02 / np.sqrt(20_000)


@pytest.mark.slow
def test_a_neural_ebm_learns_a_shifted_latent_distribution():
    """Data whose latents are far from the normal: the trained prior moves to where they are."""
    rng = np.random.default_rng(0)
    z = np.where(rng.random((2_000, 1)) < 0.5, -1.2, 1.6) + 0.2 * rng.normal(size=(2_000, 1))
    x = np.concatenate([z, -z], axis=1).astype(np.float32)
    generator = Linear(jnp.array([[1.0], [-1.0]]), jnp.zeros(2), (2,))
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(32, 32), steps=100, step_size=0.02)
    model = NeuralEBM(prior, generator, noise=0.3)
    model, history = kaem.fit(
        model,
        x,
        posterior=Langevin(20, 0.02),
        steps=600,
        batch_size=100,
        optimiser=OptimiserConfig(prior_rate=3e-3, generator_rate=0.0),
    )
    drawn = np.asarray(model.prior.sample(jax.random.key(5), 4_000))[:, 0]
    start = np.asarray(prior.sample(jax.random.key(5), 4_000))[:, 0]
    before, after = (stats.wasserstein_distance(s, z[:, 0]) for s in (start, drawn))
    assert after < 0.5 * before
    # Two modes: less mass between them than a normal has there.
    assert np.mean(np.abs(drawn - 0.2) < 0.4) < 0.6 * np.mean(np.abs(start - 0.2) < 0.4)
    assert history[-1]["lost"] == 0.0


@pytest.mark.slow
def test_prior_chains_that_diverge_are_named():
    generator = Linear(jnp.ones((2, 1)), jnp.zeros(2), (2,))
    prior = NeuralPrior(1, key=jax.random.key(0), widths=(8,), steps=60, step_size=2.5)
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    with pytest.raises(TrainingDiverged, match=r"neural_ebm\.step_size"):
        kaem.fit(NeuralEBM(prior, generator), x, posterior=Langevin(5, 0.002), steps=20)


def test_reconstructions_resemble_their_data():
    generator = Linear(jnp.asarray(W, jnp.float32), jnp.asarray(B, jnp.float32), (3,))
    prior = NeuralPrior(2, key=jax.random.key(0), widths=(8,))
    model, x = NeuralEBM(prior, generator, noise=0.2), jnp.asarray(data(200))
    made = model.reconstruct(x, jax.random.key(1), steps=200)
    start = model.decode(prior.sample(jax.random.key(2), 200))
    assert np.mean((made - x) ** 2) < 0.3 * np.mean((start - x) ** 2)


def test_parts_that_do_not_fit_are_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="takes 5 latent coordinates, but the prior has 4"):
        NeuralEBM(NeuralPrior(4, key=key), CNN(5, (8, 8, 1), key=key, widths=(4,)))
    with pytest.raises(ValueError, match=r"divisible by 16.*data\.size"):
        Encoder((28, 28, 1), 4, key=key)
    with pytest.raises(ValueError, match="positive widths"):
        NeuralPrior(4, key=key, widths=())
    with pytest.raises(ValueError, match="steps >= 1"):
        NeuralPrior(4, key=key, steps=0)


@pytest.mark.parametrize("kind", ["vae", "neural-ebm"])
def test_a_saved_model_is_the_same_model(kind, tmp_path):
    key = jax.random.key(0)
    generator = CNN(4, (8, 8, 1), key=key, widths=(8,))
    if kind == "vae":
        model = VAE(Encoder((8, 8, 1), 4, key=key, widths=(4, 4)), generator, noise=0.2)
    else:
        model = NeuralEBM(NeuralPrior(4, key=key, widths=(8,)), generator, noise=0.2)
    model.save(tmp_path / "m.safetensors")
    again = kaem.load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    model = model.prepared()  # as a model that was read is
    np.testing.assert_array_equal(again.sample(key, 3), model.sample(key, 3))
    x = model.sample(jax.random.key(1), 2)
    np.testing.assert_array_equal(again.reconstruct(x, key), model.reconstruct(x, key))
