"""What a researcher does from Python: transformations, modules and optimisers of their own, latents."""

import pkgutil
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import kaem
from kaem import KAEM, KAN, Langevin, MixturePrior, Thermodynamic, UnivariatePrior, UserError
from kaem.priors import open_uniform
from linear_gaussian import Linear, normal_prior


def small():
    a, b = jax.random.split(jax.random.key(0))
    generator = KAN(5, (4, 4, 1), key=b, depth=2)
    return KAEM(UnivariatePrior(2, key=a, cells=64), generator, noise=0.2)


MODEL = small()


def digits(n=64):
    rng = np.random.default_rng(0)
    return (255 * rng.uniform(size=(n, 4, 4, 1)) ** 3).astype(np.uint8)


def test_every_submodule_is_an_attribute_in_a_fresh_process():
    names = [m.name for m in pkgutil.walk_packages(kaem.__path__, "kaem.")]
    names = [n for n in names if not n.startswith(("kaem.cli", "kaem.__main__", "kaem.presets"))]
    assert "kaem.interpret.closed_forms.search" in names
    code = f"""
import kaem
kaem.priors.Table
for name in {names!r}:
    found = kaem
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found.__name__ == name, name
try:
    kaem.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bound_methods_can_be_transformed():
    u = jnp.full((3, *MODEL.prior.shape), 0.3)
    np.testing.assert_allclose(jax.jit(MODEL.generate)(u), MODEL.generate(u), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(MODEL.generate)(u), MODEL.generate(u), atol=1e-6)
    slope = jax.grad(lambda u: jnp.sum(MODEL.generate(u)))(u)
    step = jnp.zeros_like(u).at[0, 1, 0].set(1e-2)
    difference = jnp.sum(MODEL.generate(u + step) - MODEL.generate(u - step)) / 2e-2
    np.testing.assert_allclose(slope[0, 1, 0], difference, rtol=0.1)
    z = MODEL.prior.sample(jax.random.key(0), 3)
    for method in (MODEL.decode, MODEL.prior.log_prob, MODEL.prior.cdf, MODEL.prior.score):
        np.testing.assert_allclose(jax.jit(method)(z), method(z), rtol=1e-5, atol=1e-6)
    score = jax.vmap(jax.grad(MODEL.prior.log_prob))(z)
    np.testing.assert_allclose(score, MODEL.prior.score(z), rtol=1e-3, atol=1e-4)
    assert "Steer" in MODEL.generate.__doc__
    assert KAEM.generate(MODEL, u).shape == (3, 4, 4, 1)


def test_uniforms_are_never_at_an_end(monkeypatch):
    u = np.asarray(open_uniform(jax.random.key(0), (1000, 1000)))
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.ravel()[:100_000], "uniform").pvalue > 1e-4
    # The draw that happens once in eight million times.
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape, *_: jnp.zeros(shape))
    prior = normal_prior(3, 512)
    for z in (prior.sample(jax.random.key(0), 2), prior.for_chains()[1](jax.random.key(0), 2)):
        np.testing.assert_allclose(z, stats.norm.ppf(2.0**-24), atol=0.05)


def test_quantiles_and_numbers_of_samples_are_checked():
    with pytest.raises(ValueError, match=r"in \[0, 1\].*1.5"):
        MODEL.generate(jnp.full(MODEL.prior.shape, 1.5))
    with pytest.raises(ValueError, match="nan"):
        MODEL.generate(jnp.full(MODEL.prior.shape, jnp.nan))
    for n in (-1, 0, 2.5, True):
        for thing in (MODEL, MODEL.prior):
            with pytest.raises(ValueError, match="number of samples"):
                thing.sample(jax.random.key(0), n)
    assert MODEL.sample(jax.random.key(0), np.int64(2)).shape == (2, 4, 4, 1)


def test_examples_are_scaled_or_refused():
    x, key = digits(4), jax.random.key(0)
    floats = x / 255.0
    langevin = Langevin(steps=2)
    z = MODEL.prior.sample(key, 4)
    for use in (
        lambda x: langevin.sample(MODEL, x, z, key)[0],
        lambda x: MODEL.reconstruct(x, key, steps=2),
        lambda x: MODEL.posterior(x, key, proposals=8, steps=4),
        lambda x: kaem.log_likelihood(MODEL, x, key=key, samples=64).value,
    ):
        np.testing.assert_allclose(use(x), use(floats), atol=1e-5)
        np.testing.assert_allclose(use(x[..., 0]), use(floats), atol=1e-5)
        with pytest.raises(ValueError, match="divide by 255"):
            use(x.astype(np.float32))
        with pytest.raises(ValueError, match="shape"):
            use(floats[:, :3])


def test_the_posterior_of_ones_own_examples():
    """Linear-Gaussian: the mean and the spread of p(z | x) are known."""
    matrix = jnp.asarray([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
    model = KAEM(normal_prior(2, 256), Linear(matrix), noise=0.6)
    x = np.tile(np.array([0.7, -1.1, 0.4]), (1500, 1))
    z = np.asarray(model.posterior(x, jax.random.key(0), proposals=512, steps=60), float)
    covariance = np.linalg.inv(np.eye(2) + matrix.T @ matrix / 0.36)
    mean = covariance @ matrix.T @ x[0] / 0.36
    # 1,500 chains that share their proposals: 5 standard errors of independent draws.
    np.testing.assert_allclose(z.mean(0), mean, atol=5 * np.sqrt(covariance.max() / 1500))
    np.testing.assert_allclose(np.cov(z.T), covariance, atol=0.15 * covariance.max())


class Dense(kaem.AbstractGenerator):
    """A generator of one's own, with a network of Equinox inside."""

    network: eqx.nn.MLP
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, latents, data_shape, *, key):
        self.network = eqx.nn.MLP(latents, int(np.prod(data_shape)), 16, 2, jax.nn.silu, key=key)
        self.data_shape = data_shape

    def __call__(self, z):
        return self.network(z).reshape(self.data_shape)


def own():
    prior = MixturePrior(2, 3, key=jax.random.key(0), cells=64, domain=(-6.0, 6.0))
    return KAEM(prior, Dense(3, (4, 2), key=jax.random.key(1)), noise=0.3)


@pytest.mark.parametrize(
    "posterior",
    [None, Langevin(steps=2, persistent=True), Thermodynamic(steps=2, temperatures=2)],
    ids=["importance", "langevin", "thermodynamic"],
)
def test_a_generator_of_ones_own_trains_with_every_posterior(posterior):
    model = own()
    x = np.random.default_rng(0).normal(1.0, 0.1, (32, 4, 2))
    trained, history = kaem.fit(
        model, x, posterior=posterior, steps=20, batch_size=16, log_every=10
    )
    assert history[-1]["log_likelihood"] > history[0]["log_likelihood"] + 1
    moved = trained.generator.network.layers[0].weight - model.generator.network.layers[0].weight
    assert float(jnp.max(jnp.abs(moved))) > 1e-4


def test_a_generator_of_ones_own_saves_and_loads(tmp_path):
    model, path = own(), tmp_path / "m.safetensors"
    with pytest.raises(UserError, match=r"kaem\.register"):
        model.save(path)
    assert not path.exists()
    kaem.register(Dense)
    model.save(path)
    key = jax.random.key(3)
    again = kaem.load(path)
    np.testing.assert_array_equal(again.sample(key, 4), model.prepared().sample(key, 4))
    assert isinstance(again.generator, Dense)  # though kaem has a `Dense` of its own
    assert again.generator.network.activation is jax.nn.silu
    # Where nobody registered it, the message says what to do, and nothing is imported.
    code = f"import kaem\ntry:\n    kaem.load({str(path)!r})\nexcept kaem.UserError as e:\n    print(e)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'Dense'" in found.stdout
    assert "kaem.register" in found.stdout


def test_what_cannot_be_registered_or_called_is_explained():
    with pytest.raises(ValueError, match="with a name"):
        kaem.register(lambda z: z)
    with pytest.raises(ValueError, match="Equinox module"):
        kaem.register(int)
    prior = normal_prior(4, 64)
    with pytest.raises(ValueError, match=r"cannot be called with one latent .* \(4,\)"):
        KAEM(prior, Dense(3, (4, 2), key=jax.random.key(0)))
    wrong = eqx.tree_at(lambda g: g.network, Dense(4, (4, 2), key=jax.random.key(0)), lambda z: z)
    with pytest.raises(ValueError, match="Dense"):
        KAEM(prior, wrong)

    class Half(kaem.AbstractGenerator):
        data_shape: tuple[int, ...] = (2,)

    with pytest.raises(TypeError, match="__call__"):
        Half()


def test_any_optimiser_of_optax_fits():
    """One step of plain gradient descent from the same gradient, at two rates."""
    x = digits()
    moves = []
    for rate in (1e-5, 2e-5):
        trained, _ = kaem.fit(
            MODEL, x, optimiser=optax.sgd(rate), steps=1, batch_size=64, log_every=1,
            grid=kaem.training.GridConfig(prior=False, generator=False),
        )  # fmt: skip
        name = lambda m: m.generator.layers[1].base_weight  # noqa: E731
        moves.append(np.asarray(name(trained) - name(MODEL), float))
    assert np.abs(moves[0]).max() > 0
    np.testing.assert_allclose(moves[1], 2 * moves[0], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau()),
        optax.MultiSteps(optax.adam(1e-3), 2),
    ],
    ids=["plateau", "multi-steps"],
)
def test_optimisers_that_ask_for_more_fit_too(optimiser):
    x = np.random.default_rng(0).normal(1.0, 0.1, (32, 4, 2))
    _, history = kaem.fit(own(), x, optimiser=optimiser, steps=8, batch_size=16, log_every=4)
    assert history[-1]["loss"] < history[0]["loss"]


def test_what_is_no_optimiser_is_refused():
    with pytest.raises(ValueError, match=r"optax\.adam"):
        kaem.fit(MODEL, digits(), optimiser="adam")


def test_a_frozen_prior_is_frozen_under_any_optimiser():
    adamw = optax.adamw(1e-2, weight_decay=0.1)
    trained, _ = kaem.fit(
        MODEL, digits(), optimiser=adamw, steps=3, batch_size=32, log_every=3, freeze_prior=True
    )
    for a, b in zip(
        jax.tree.leaves(trained.prior.energies), jax.tree.leaves(MODEL.prior.energies), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_callbacks_see_the_model_and_may_stop_and_validation_is_not_learned_from():
    x, seen = digits(96), []

    def callback(record, model):
        seen.append((record["step"], model))
        return record["step"] == 20

    options = {"steps": 100, "batch_size": 32, "log_every": 10, "callback": callback}
    plain, _ = kaem.fit(MODEL, x, **options)
    seen.clear()
    trained, history = kaem.fit(MODEL, x, validation=255 - digits(70), **options)
    assert [step for step, _ in seen] == [10, 20] == [h["step"] for h in history]
    samples = [model.sample(jax.random.key(0), 1) for _, model in seen]  # buffers are their own
    assert not np.array_equal(*samples)
    assert history[-1]["validation_loss"] > history[-1]["loss"] + 1  # negatives are not digits
    for a, b in zip(
        jax.tree.leaves(eqx.filter(trained, eqx.is_array)),
        jax.tree.leaves(eqx.filter(plain, eqx.is_array)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(UserError, match="validation"):
        kaem.fit(MODEL, x, validation=x[:, :2], **options)


def test_validation_has_persistent_chains_of_its_own():
    x = np.random.default_rng(0).normal(1.0, 0.1, (24, 4, 2))
    _, history = kaem.fit(
        own(),
        x[:16],
        validation=x[16:],
        posterior=Langevin(steps=2, persistent=True),
        steps=20,
        batch_size=16,
        log_every=10,
    )
    gaps = [abs(h["validation_log_likelihood"] - h["log_likelihood"]) for h in history]
    assert history[-1]["validation_log_likelihood"] > history[0]["validation_log_likelihood"]
    assert gaps[-1] < 20
