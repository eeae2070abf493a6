"""A lens: its map against SciPy's transform, its density, how it is adjusted, and that everybody uses it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.fft import dctn, idctn
from scipy.stats import multivariate_normal

import kaem
from kaem.observation import Lens
from kaem.posterior.evaluator import evaluator
from kaem.settings import Settings, merge
from kaem.training.loop import updates
from kaem.training.plan import initial_state
from support.chains import coloured
from support.encoders import SPECTRAL
from support.linear_gaussian import Linear, normal_prior

SHAPE = (8, 8, 3)


def curved(shape=SHAPE):
    """A lens whose transfer falls from 1 to a third and rises to 2, around a mean image."""
    lens = Lens(shape)
    transfer = jnp.concatenate([jnp.linspace(1, 1 / 3, 5), jnp.linspace(0.5, 2, 20)])
    mean = jnp.asarray(np.random.default_rng(9).uniform(size=shape), jnp.float32)
    new = (transfer[: len(lens.transfer)], mean)
    return eqx.tree_at(lambda lens: (lens.transfer, lens.mean), lens, new)


def rings(shape):
    height, width = shape[:2]
    rows, columns = np.mgrid[:height, :width]
    longest = max(height, width)
    return np.rint(np.hypot(rows * longest / height, columns * longest / width)).astype(int)


@pytest.mark.parametrize("shape", [SHAPE, (8, 4, 1), (5, 6, 3)])
def test_it_multiplies_cosine_coefficients(shape):
    lens, x = curved(shape), np.random.default_rng(0).uniform(size=(3, *shape))
    mean = np.asarray(lens.mean, float)
    coefficients = dctn(x - mean, axes=(1, 2), norm="ortho")
    changed = coefficients * np.asarray(lens.transfer)[rings(shape)][..., None]
    expected = mean + idctn(changed, axes=(1, 2), norm="ortho")
    assert np.allclose(lens(jnp.asarray(x)), expected, atol=2e-6)
    # Of any leading axes, one by one and all together, and a new one changes nothing.
    assert np.allclose(lens(jnp.asarray(x[1])), lens(jnp.asarray(x))[1], atol=1e-6)
    assert np.allclose(Lens(shape)(jnp.asarray(x)), x, atol=1e-6)


def test_the_likelihood_is_a_normal_density():
    model = Settings.from_dict(SPECTRAL).model(SHAPE)
    model = eqx.tree_at(lambda m: m.lens, model, curved())
    x = np.asarray(coloured()[:3], np.float32) / 255
    drawn = model.decode(model.prior.sample(jax.random.key(0), 3))
    none = np.asarray(model.lens(jnp.zeros(SHAPE))).ravel()
    columns = np.asarray(model.lens(jnp.eye(192).reshape(192, *SHAPE))).reshape(192, 192) - none
    means = none + np.asarray(drawn, float).reshape(3, 192) @ columns
    expected = [
        multivariate_normal(mean, model.noise**2).logpdf(x[i].ravel())
        for i, mean in enumerate(means)
    ]
    assert np.allclose(model.log_likelihood(jnp.asarray(x), drawn), expected, rtol=1e-5)
    table = model.log_likelihood_matrix(jnp.asarray(x), drawn)
    assert np.allclose(np.diag(table), expected, rtol=1e-5)
    noisy = model.sample_with_noise(jax.random.key(1), 400) - model.seen(
        model.sample(jax.random.key(1), 400)
    )
    assert np.abs(np.mean(noisy)) < 5 * model.noise / noisy.size**0.5
    assert np.std(noisy) == pytest.approx(model.noise, rel=0.02)  # 400 x 192 numbers: eight errors


def test_chains_follow_the_same_density():
    """Value and gradient that chains use, against automatic differentiation of the likelihood."""
    model = Settings.from_dict(SPECTRAL).model(SHAPE)
    model = eqx.tree_at(lambda m: m.lens, model, curved())
    x = jnp.asarray(np.asarray(coloured()[:4], np.float32) / 255)
    z = model.prior.sample(jax.random.key(0), 4)
    potential, _ = model.prior.for_chains()
    found = evaluator(model, x, potential)(z)

    def value(z):
        return jnp.sum(model.log_likelihood(x, model.decode(z)))

    assert np.allclose(found.log_likelihood, model.log_likelihood(x, model.decode(z)), rtol=1e-5)
    gradient = jax.grad(value)(z)
    assert np.allclose(found.likelihood_score, gradient, atol=1e-4 * np.abs(gradient).max())


def test_the_evidence_is_known_where_everything_is_linear():
    """x = B A z + (1 - B) mu + noise: importance sampling against the normal evidence."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(64, 2)) / 4
    lens = curved((8, 8, 1))

    class Image(Linear):
        def __call__(self, z):
            return (self.matrix @ z.reshape(-1)).reshape(8, 8, 1)

    generator = Image(jnp.asarray(matrix, jnp.float32), (8, 8, 1))
    model = kaem.KAEM(normal_prior(2, 256), generator, 0.5, lens=lens)
    none = np.asarray(lens(jnp.zeros((8, 8, 1)))).ravel()
    seen = np.asarray(lens(jnp.asarray(matrix.T.reshape(2, 8, 8, 1), jnp.float32))).reshape(2, 64).T
    seen = seen - none[:, None]
    law = multivariate_normal(none, seen @ seen.T + 0.25 * np.eye(64))
    x = law.rvs(4, random_state=2).reshape(4, 8, 8, 1).astype(np.float32)
    found = kaem.log_likelihood(
        model, x, method="importance", key=jax.random.key(0), samples=20_000
    )
    gaps = np.asarray(found.value) - law.logpdf(x.reshape(4, 64))
    assert (np.abs(gaps) < 4 * np.asarray(found.error)).all()
    assert (np.asarray(found.error) < 0.1).all()


def field(n, spectrum, rng):
    """Random images with a known deviation at each frequency."""
    return spectrum[rings(SHAPE)][..., None] * rng.normal(size=(n, *SHAPE))


def test_focusing_finds_the_closed_form():
    """Means that know a share of the images' contrast, and grain at the highest frequencies."""
    rng, n = np.random.default_rng(3), 4000
    known = np.linspace(1.0, 0.2, 11)  # rho: how much of the image the mean explains
    grain = np.where(np.arange(11) > 8, 0.3, 0.0)
    part = field(n, known, rng)
    image = part + field(n, np.sqrt(1 - known**2), rng)
    mean = part + field(n, grain, rng)

    def back(c):
        return idctn(c, axes=(1, 2), norm="ortho")

    lens = Lens(SHAPE, most=4.0, coherence=0.08).focused(back(image), back(mean))
    v_r = known**2 + grain**2
    rho, w = known**2 / np.sqrt(v_r), known**2 / v_r
    gain = np.clip(w / rho / (1 + (0.08 / rho**2) ** 4), 1 / 4, 4)
    # An error of a variance is sqrt(2 / n) of it, in rings of one to sixteen coefficients of three channels.
    assert np.allclose(1 / np.asarray(lens.transfer), gain, rtol=0.1)
    assert gain[6] > 1.5
    assert gain[-1] < gain[-3]
    # Seen through itself: what was drawn sharper by 1 / b gives the same lens again.
    drawn = back(mean / np.asarray(lens.transfer)[rings(SHAPE)][..., None])
    assert np.allclose(lens.focused(back(image), drawn).transfer, lens.transfer, rtol=1e-3)


def test_what_all_images_have_in_common_is_drawn_as_it_is():
    """A generator that knows half of each image, and a pattern that all images share."""
    rng, n = np.random.default_rng(5), 2000
    pattern = np.tile([[[0.2], [0.8]], [[0.8], [0.2]]], (4, 4, 3))  # the highest frequency
    known, unknown = (0.1 * rng.normal(size=(n, *SHAPE)) for _ in range(2))
    lens = Lens(SHAPE).focused(pattern + known + unknown, pattern + known)
    assert np.asarray(lens.transfer)[1:].max() < 0.8  # contrasts that are known by half
    assert np.allclose(lens(jnp.asarray(pattern)), pattern, atol=0.01)  # 4 errors of a mean
    # What is seen right is then drawn sharper around the pattern, and not a stronger pattern.
    rows = np.asarray(lens(jnp.eye(192).reshape(192, *SHAPE)) - lens(jnp.zeros(SHAPE)))
    target = (pattern + known[:500]).reshape(500, -1) - np.asarray(lens(jnp.zeros(SHAPE))).ravel()
    drawn = np.linalg.solve(rows.reshape(192, 192).T, target.T).T
    assert np.allclose(drawn.mean(0), pattern.ravel(), atol=0.05)
    assert drawn.std() > 1.2 * known.std()


def test_no_gain_is_beyond_its_limits_and_nothing_is_not_finite():
    rng = np.random.default_rng(4)
    x = rng.uniform(size=(50, *SHAPE))
    for drawn in (np.zeros_like(x), rng.uniform(size=x.shape), 0.01 * x, 100 * x):
        transfer = np.asarray(Lens(SHAPE, most=2.0).focused(x, drawn).transfer)
        assert np.isfinite(transfer).all()
        assert transfer.min() >= 0.5 - 1e-6
        assert transfer.max() <= 2 + 1e-6


def test_training_adjusts_it_and_leaves_all_else_alone():
    settings = Settings.from_dict(
        merge(
            SPECTRAL,
            {"training": {"steps": 9, "batch_size": 16, "log_every": 3, "checkpoint_every": 3}},
        )
    )
    x, plan = coloured(), settings.plan()
    assert plan.upkeep.focusing_steps(9) == {6, 8}
    states = {}
    for boundary in updates(initial_state(settings.model(SHAPE), plan, len(x)), x, plan):
        states[boundary.state.step] = np.asarray(boundary.state.model.lens.transfer)
    assert np.array_equal(states[3], np.ones_like(states[3]))
    assert not np.array_equal(states[6], states[3])
    assert states[6][0] == 1  # the mean of an image passes
    assert np.array_equal(states[8], states[9])


def test_a_file_keeps_it(tmp_path):
    model = Settings.from_dict(SPECTRAL).model(SHAPE)
    model = eqx.tree_at(lambda m: m.lens, model, curved())
    model.save(tmp_path / "model.safetensors")
    again = kaem.load(tmp_path / "model.safetensors")
    assert np.array_equal(again.lens.transfer, curved().transfer)
    assert np.array_equal(again.lens.mean, curved().mean)
    x = jnp.asarray(np.asarray(coloured()[:2], np.float32) / 255)
    assert np.allclose(
        again.log_likelihood(x, jnp.zeros((2, *SHAPE))),
        model.log_likelihood(x, jnp.zeros((2, *SHAPE))),
    )


def test_it_needs_an_encoder():
    with pytest.raises(kaem.UserError, match="adjusted by what an encoder makes"):
        Settings.from_dict({"prior": {"latents": 2}, "lens": {"kind": "spectral"}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lens((3,)), "a lens is for images"),
        (lambda: Lens(SHAPE, most=0.5), "at least 1"),
        (lambda: Lens(SHAPE, coherence=0.0), "positive"),
    ],
)
def test_what_no_lens_can_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
