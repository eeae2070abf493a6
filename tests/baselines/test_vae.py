"""The VAE against what is known: analytic evidence and KL."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import kaem
from kaem import CNN
from kaem.baselines import VAE, Encoder, EvidenceBound
from kaem.posterior.guess import Normal
from kaem.training import Adam
from support.affine import NOISE, Affine, B, W, data


def linear_vae(key=0):
    generator = Affine(jnp.asarray(W, jnp.float32), jnp.asarray(B, jnp.float32), (3,))
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


def test_without_a_key_means_are_reconstructed():
    """The mean of the linear-Gaussian posterior is known, and so is what it decodes to."""
    model, x = with_exact_posterior(linear_vae()), jnp.asarray([[0.3, -1.0, 2.0]])
    gain = np.linalg.inv(np.eye(2) + W.T @ W / NOISE**2) @ W.T / NOISE**2
    np.testing.assert_allclose(
        np.asarray(model.reconstruct(x)), B + (np.asarray(x) - B) @ gain.T @ W.T, atol=1e-4
    )


def bound(model, x, draws, key=0):
    """The mean ELBO of each example over many draws, and its standard error."""
    mean, log_variance = model.encoder(x)
    xi = jax.random.normal(jax.random.key(key), (draws, *mean.shape))
    z = mean + jnp.exp(0.5 * log_variance) * xi
    made = jax.vmap(model.decode)(z)
    values = np.asarray(
        model.log_likelihood(x, made) - Normal(mean, log_variance).kl_from_standard(), float
    )
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
    np.testing.assert_allclose(Normal(mean, log_variance).kl_from_standard(), total, rtol=1e-6)


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
        learner=EvidenceBound(),
        key=jax.random.key(0),
        optimiser=Adam(generator_rate=1e-2),
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


def test_the_authors_loss_is_ours_at_one_noise():
    """With 2 sigma^2 = 0.01 D / Q and beta = 1, up to a factor and what no parameter changes."""
    d, q = W.shape
    x, key = jnp.asarray(data(50)), jax.random.key(3)
    noise = np.sqrt(0.01 * d / q / 2)
    model = eqx.tree_at(lambda m: m.noise, linear_vae(), noise)

    def ours(model):
        return -EvidenceBound().objective(model, x, key, {}, 0.0)[0]

    def authors(model):
        mean, log_variance = model.encoder(x)
        made = model.decode(Normal(mean, log_variance).draw(key))
        kl = -0.5 * jnp.mean(1 + log_variance - mean**2 - jnp.exp(log_variance))
        return jnp.mean((x - made) ** 2) + 0.01 * kl

    def slopes(loss):
        found = eqx.filter_grad(loss)(model).encoder
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])

    np.testing.assert_allclose(
        2 * noise**2 / d * slopes(ours), slopes(authors), rtol=1e-4, atol=1e-7
    )


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
    model, _ = kaem.fit(
        model, x, learner=EvidenceBound(), key=jax.random.key(0), steps=400, batch_size=50
    )
    error = np.mean((np.asarray(model.reconstruct(jnp.asarray(patterns), key)) - patterns) ** 2)
    assert error < 0.02  # a constant image is at 0.25
