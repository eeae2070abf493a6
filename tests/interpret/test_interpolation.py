"""Paths between latents against closed forms, and animations read back with Pillow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence
from scipy.optimize import minimize_scalar

from kaem import UserError
from kaem.bench import oracle
from kaem.interpret.figures.evolution import evolution
from kaem.interpret.figures.interpolation import (
    draw_interpolation,
    interpolation,
    mode_pair,
    sample_pair,
    slerp,
)
from kaem.interpret.influence import Influence
from kaem.models import KAEM
from support.pictures import assert_drawn
from support.planted import TRUNCATED, Planted, planted, reference_prior


def test_slerp_is_a_rotation_of_vectors_of_equal_length():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7))
    b *= np.linalg.norm(a) / np.linalg.norm(b)
    t = np.linspace(0, 1, 9)
    e1 = a / np.linalg.norm(a)
    e2 = b - (b @ e1) * e1
    e2 /= np.linalg.norm(e2)
    omega = np.arctan2(b @ e2, b @ e1)
    rotated = np.cos(t * omega)[:, None] * e1 + np.sin(t * omega)[:, None] * e2
    found = slerp(a, b, t)
    np.testing.assert_allclose(found, np.linalg.norm(a) * rotated, atol=1e-12)
    np.testing.assert_array_equal(found[[0, -1]], [a, b])


def test_slerp_of_orthogonal_vectors_has_the_norms_of_an_ellipse():
    a, b = np.array([[3.0, 0.0]]), np.array([[0.0, 2.0]])  # latents may have two axes
    t = np.linspace(0, 1, 5)
    norms = np.sqrt(9 * np.cos(np.pi * t / 2) ** 2 + 4 * np.sin(np.pi * t / 2) ** 2)
    np.testing.assert_allclose(np.linalg.norm(slerp(a, b, t), axis=(1, 2)), norms)


@pytest.mark.parametrize("b", [[2.0, 4.0], [1.0, 2.0000001], [-1.0, -2.0], [0.0, 0.0]])
def test_slerp_is_a_straight_line_where_there_is_no_arc(b):
    a, t = np.array([1.0, 2.0]), np.linspace(0, 1, 5)
    expected = (1 - t)[:, None] * a + t[:, None] * np.array(b)
    np.testing.assert_allclose(slerp(a, np.array(b), t), expected, atol=1e-12)


def test_paths_between_samples_match_scipy(tmp_path):
    model, weights = planted()
    a, b = sample_pair(model, jax.random.key(5))
    found = interpolation(model, a, b, points=6)
    t = np.linspace(0, 1, 6)[:, None, None]
    expected = TRUNCATED.ppf((1 - t) * TRUNCATED.cdf(a) + t * TRUNCATED.cdf(b))
    np.testing.assert_allclose(found.quantile.z, expected, atol=1e-5)
    assert (np.diff(found.quantile.z, axis=0) * np.sign(b - a) >= 0).all()
    for path in (found.slerp, found.quantile):
        np.testing.assert_array_equal(path.z[[0, -1]], [a, b])
        images = 0.5 + path.z.reshape(6, -1) @ weights
        np.testing.assert_allclose(path.images.reshape(6, -1), images, atol=1e-6)
        log_prob = TRUNCATED.logpdf(path.z).sum(axis=(1, 2))
        np.testing.assert_allclose(path.log_prob, log_prob, rtol=1e-4, atol=1e-4)
    for suffix in ("png", "svg"):
        draw_interpolation(found, tmp_path / f"i.{suffix}")
        assert_drawn(tmp_path / f"i.{suffix}", 7.0)


def test_slerp_leaves_the_domain_and_the_quantile_path_does_not(tmp_path):
    """Between (1.4, 1.4) and (1.4, -1.4) the arc passes through (1.98, 0), outside 1.5."""
    model, _ = planted()
    a, b = np.zeros((2, 3, 2), np.float32)
    a[0], b[0] = (1.4, 1.4), (1.4, -1.4)
    found = interpolation(model, a, b, points=5)
    np.testing.assert_allclose(found.slerp.z[2, 0], [1.4 * 2**0.5, 0], atol=1e-6)
    assert np.isneginf(found.slerp.log_prob).tolist() == [False, True, True, True, False]
    assert np.isfinite(found.quantile.log_prob).all()
    draw_interpolation(found, tmp_path / "i.png")


def test_densities_are_of_latents_that_move_the_output():
    model, _ = planted()
    a, b = np.zeros((2, 3, 2), np.float32)
    a[0], b[0] = (-1, -0.5), (1, 0.5)
    b[2] = (0.9, 0.01)
    plain = interpolation(model, a, b, points=2)
    assert [c.place for c in plain.curves] == [(0, 0), (0, 1), (2, 0)]
    share = np.array([[0.1, np.nan], [9.0, 9.0], [0.5, 0.4]])
    weighed = interpolation(model, a, b, 2, Influence(share, share, np.arange(6), 1.0))
    assert [c.place for c in weighed.curves] == [(2, 0), (0, 0), (2, 1)]
    assert [c.place for c in interpolation(model, a, a, 2).curves] == [(0, 0)]  # nothing moves
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        interpolation(model, a[0], b[0])


def test_mode_pair_finds_planted_modes():
    """A density of two bumps, one of a single bump off the centre, and the reference itself."""
    prior = reference_prior().uncache()
    coefficients = np.zeros(prior.energies.basis.coefficients.shape, np.float32)
    coefficients[0, 0, [4, 15]] = 6, 5  # near -0.9 and 0.75
    coefficients[1, 1, 14] = 6
    prior = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, jnp.asarray(coefficients))
    model = KAEM(prior, Planted(jnp.ones((6, 24)), 3))
    a, b = mode_pair(model)

    def mode(q, p, lo, hi):
        log_density = oracle.log_density(prior, q, p)
        found = minimize_scalar(lambda z: -log_density(np.array([z]))[0], bounds=(lo, hi), method="bounded")  # fmt: skip
        return found.x

    step = 3 / 2000
    np.testing.assert_allclose(a[0, 0], mode(0, 0, -1.3, -0.5), atol=step)
    np.testing.assert_allclose(b[0, 0], mode(0, 0, 0.3, 1.2), atol=step)
    np.testing.assert_allclose(a[1, 1], mode(1, 1, 0.2, 1.0), atol=step)
    np.testing.assert_allclose(a[2, 0], 0, atol=step)
    np.testing.assert_allclose(abs(b[2, 0]), TRUNCATED.ppf(0.975), atol=1e-5)
    # Of the skewed density, the tail on the far side of zero from its bump.
    grid = np.linspace(-1.5, 1.5, 20_001)
    mass = np.cumsum(np.exp(oracle.log_density(prior, 1, 1)(grid)))
    tails = np.interp([0.025, 0.975], mass / mass[-1], grid)
    lower = tails[np.argmin(oracle.log_density(prior, 1, 1)(tails))]
    np.testing.assert_allclose(b[1, 1], lower, atol=1e-3)
    assert (model.prior.log_prob(jnp.asarray(b)) < model.prior.log_prob(jnp.asarray(a))).all()


def sheets(folder, steps, size=(600, 300)):
    """Grey sheets whose level tells the step."""
    folder.mkdir()
    for level, step in zip(np.linspace(40, 220, len(steps)), steps, strict=True):
        Image.new("L", size, int(level)).save(folder / f"{step}.png")


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_evolution_has_a_frame_for_each_step_in_order(tmp_path, suffix):
    # By name, 1000 would come before 200 and 00000050.
    sheets(tmp_path / "samples", ["00000050", 200, 1000])
    Image.new("L", (9, 9)).save(tmp_path / "samples" / "mean.png")
    output = tmp_path / f"e.{suffix}"
    assert evolution(tmp_path / "samples", output, 0.2, 1.5) == [50, 200, 1000]
    durations, levels, captions = [], [], []
    with Image.open(output) as image:
        assert image.size == (480, 240 + 24)
        for frame in ImageSequence.Iterator(image):
            frame.load()
            durations.append(frame.info["duration"])
            pixels = np.asarray(frame.convert("L"), int)
            levels.append(pixels[120, 240])
            captions.append((pixels[240:] < 100).sum())
    assert durations == [200, 200, 1500]
    np.testing.assert_allclose(levels, [40, 130, 220], atol=3)
    assert captions == sorted(captions)  # "update 50", "update 200" and "update 1,000"
    assert captions[0] > 50
    assert output.stat().st_size < 20_000


def test_long_runs_are_thinned_evenly(tmp_path):
    sheets(tmp_path / "samples", range(1, 102), size=(8, 8))
    steps = evolution(tmp_path / "samples", tmp_path / "e.gif")
    assert len(steps) == 40
    assert steps[0] == 1
    assert steps[-1] == 101
    assert set(np.diff(steps)) <= {2, 3}
    with Image.open(tmp_path / "e.gif") as image:
        assert image.n_frames == 40


def test_evolution_says_what_is_wrong(tmp_path):
    samples = tmp_path / "samples"
    with pytest.raises(UserError, match="no sample sheets"):
        evolution(samples, tmp_path / "e.gif")
    sheets(samples, [1, 2])
    with pytest.raises(UserError, match=r"\.gif or \.webp"):
        evolution(samples, tmp_path / "e.mp4")
    whole = (samples / "2.png").read_bytes()
    for damaged in (b"", whole[:60], whole[:-40], whole.replace(b"IDAT", b"IDAX"), b"GIF89a"):
        (samples / "2.png").write_bytes(damaged)
        with pytest.raises(UserError, match=r"2\.png is not a readable PNG"):
            evolution(samples, tmp_path / "e.gif")
    assert not (tmp_path / "e.gif").exists()
