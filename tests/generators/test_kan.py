"""The KAN generator as the theorem writes it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from kaem import KAEM, KAN, UnivariatePrior
from kaem.bases import BASES
from kaem.bench import oracle
from support.models import bent


def make(basis="rbf", depth=2, output="sigmoid", **kwargs):
    a, b = jax.random.split(jax.random.key(0))
    prior = UnivariatePrior(2, key=a, basis=basis, **kwargs)
    generator = KAN(5, (3, 4, 1), key=b, depth=depth, output=output, basis=basis)
    return KAEM(prior, generator, noise=0.2, generator_noise=0.1)


def test_widths_chain_as_kart_says():
    generator = KAN(81, (28, 28, 1), key=jax.random.key(0), depth=4)
    shapes = [layer.basis.coefficients.shape[:2] for layer in generator.layers]
    assert shapes == [(163, 81), (327, 163), (655, 327), (784, 655)]


@pytest.mark.parametrize("basis", list(BASES))
def test_generator_is_the_papers_formula(basis):
    """eq. generator, with sums and univariate functions evaluated one by one in float64."""
    model = make(basis, depth=2)
    z = np.asarray(model.prior.sample(jax.random.key(1), 1)[0], np.float64)
    x = z.sum(axis=1)
    for layer in model.generator.layers:
        outputs = layer.shape[0]
        x = np.array(
            [
                sum(oracle.energy(layer, o, i)(np.array([x[i]]))[0] for i in range(len(x)))
                for o in range(outputs)
            ]
        )
    expected = special.expit(x)
    ours = model.decode(jnp.asarray(z, jnp.float32)[None])[0]
    np.testing.assert_allclose(np.asarray(ours).ravel(), expected, atol=2e-5)


def test_noise_enters_before_the_activation():
    model = make()
    z = model.prior.sample(jax.random.key(1), 4)
    quiet, noisy = model.decode(z), model.decode(z, jax.random.key(2))
    added = np.asarray(jax.scipy.special.logit(noisy) - jax.scipy.special.logit(quiet)).ravel()
    assert stats.kstest(added / 0.1, "norm").pvalue > 1e-3
    identity = make(output="identity")
    assert (np.asarray(identity.decode(z)) < 0).any()


def test_regridding_the_generator_preserves_its_images():
    """Smooth functions over the inputs that latents really give, then one more grid update."""
    model = make(depth=2)
    z = model.prior.sample(jax.random.key(1), 500)
    generator = model.generator.regrid(z, 0.3)
    for i, layer in enumerate(generator.layers):
        phase = jax.random.uniform(
            jax.random.key(i), layer.basis.coefficients.shape[:2], maxval=6.0
        )
        lo, hi = layer.basis.grid[:, :1], layer.basis.grid[:, -1:]
        t = (layer.basis.grid - lo) / (hi - lo)
        smooth = 0.2 * jnp.sin(3 * t + phase[..., None])
        generator = eqx.tree_at(lambda g, i=i: g.layers[i].basis.coefficients, generator, smooth)
        generator = generator.regrid(z, 0.3) if i == 0 else generator
    moved = generator.regrid(model.prior.sample(jax.random.key(2), 500), 0.05)
    a, b = (np.asarray(jax.vmap(g)(z)) for g in (generator, moved))
    # A grid of quantiles has few centres in the tails, where single pixels move by up to 0.06.
    assert np.sqrt(np.mean((a - b) ** 2)) < 0.03 * a.std()


def test_a_grid_update_keeps_what_the_generator_makes():
    model = bent()
    fresh = model.prior.sample(jax.random.key(9), 500)
    before = np.asarray(model.decode(fresh))
    z = model.prior.sample(jax.random.key(1), 1000)
    moved = model.generator.regrid(z)
    after = np.asarray(eqx.tree_at(lambda m: m.generator, model, moved).decode(fresh))
    change = np.sqrt(np.mean((after - before) ** 2) / np.mean((before - before.mean(0)) ** 2))
    assert change < 0.01
    free = model.generator.regrid(z, change=None)
    after = np.asarray(eqx.tree_at(lambda m: m.generator, model, free).decode(fresh))
    change = np.sqrt(np.mean((after - before) ** 2) / np.mean((before - before.mean(0)) ** 2))
    assert change > 0.02  # what the limit prevents
