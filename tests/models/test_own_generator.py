"""A generator of one's own: it trains, saves and loads, or it is explained why not."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Int

import kaem
from kaem import KAEM, Langevin, Thermodynamic, UserError
from support.linear_gaussian import normal_prior
from support.models import Dense, own


@pytest.mark.parametrize(
    "learner",
    [None, Langevin(steps=2, persistent=True), Thermodynamic(steps=2, temperatures=2)],
    ids=["importance", "langevin", "thermodynamic"],
)
def test_a_generator_of_ones_own_trains_with_every_learner(learner):
    model = own()
    x = np.random.default_rng(0).normal(1.0, 0.1, (32, 4, 2))
    trained, history = kaem.fit(
        model, x, key=jax.random.key(0), learner=learner, steps=20, batch_size=16, log_every=10
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


class Shuffled(kaem.AbstractGenerator):
    """A generator of one's own that holds whole numbers, too."""

    order: Int[Array, " n"]
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, z):
        return z[self.order]


def test_a_generator_with_whole_numbers_saves_and_loads(tmp_path):
    kaem.register(Shuffled)
    path = tmp_path / "m.safetensors"
    model = KAEM(normal_prior(4, 64), Shuffled(jnp.array([3, 1, 0, 2]), (4,)))
    model.save(path)
    again = kaem.load(path)
    z = jnp.arange(4.0)[None]
    np.testing.assert_array_equal(again.decode(z), [[3, 1, 0, 2]])
    wrong = eqx.tree_at(lambda m: m.prior.domain, model, jnp.array([[-5, 5]]))
    wrong.save(path)
    with pytest.raises(UserError, match=r"int32 numbers in \.prior\.domain"):
        kaem.load(path)


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


class Plain(kaem.models.LatentModel):
    """A latent model of one's own."""

    prior: kaem.UnivariatePrior
    generator: kaem.AbstractGenerator
    noise: float = eqx.field(static=True, default=0.3)
    generator_noise: float = eqx.field(static=True, default=0.0)

    def usual_learner(self):
        return Langevin()


def test_a_latent_model_of_ones_own_saves_and_loads(tmp_path):
    kaem.register(Plain)
    kaem.register(Dense)
    path, key = tmp_path / "m.safetensors", jax.random.key(2)
    model = Plain(own().prior, own().generator)
    model.save(path)
    np.testing.assert_allclose(kaem.load(path).sample(key, 3), model.sample(key, 3), atol=1e-5)


def test_a_noise_that_was_learned_saves_and_loads(tmp_path):
    kaem.register(Dense)
    path = tmp_path / "m.safetensors"
    model = eqx.tree_at(lambda m: m.noise, own(), jnp.float32(0.2))
    model.save(path)
    again = kaem.load(path)
    assert float(again.noise) == np.float32(0.2)
    x = jnp.zeros((1, 4, 2))
    expected = KAEM(own().prior, own().generator, noise=np.float32(0.2)).log_likelihood(x, x + 0.1)
    np.testing.assert_allclose(again.log_likelihood(x, x + 0.1), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="noise must be positive"):
        KAEM(own().prior, own().generator, noise=jnp.array([0.1, 0.2]))
