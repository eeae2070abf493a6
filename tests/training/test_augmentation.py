"""Images that vary from visit to visit, against NumPy's reflection, and where nothing can vary."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

import kaem
from kaem.errors import UserError
from kaem.settings import Settings, merge
from kaem.training import Augmentation
from support.encoders import ENCODED

RNG = np.random.default_rng(0)


def shifted(image, corner, shift):
    """Return the image as NumPy moves it."""
    padded = np.pad(image, ((shift, shift), (shift, shift), (0, 0)), mode="reflect")
    row, column = corner
    return padded[row : row + image.shape[0], column : column + image.shape[1]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_moved_and_mirrored_evenly(dtype):
    image = (RNG.uniform(size=(7, 9, 3)) * 255).astype(dtype)
    n, shift = 4000, 2
    seen = np.asarray(Augmentation(shift, True)(np.stack([image] * n), jax.random.key(1)))
    assert seen.dtype == dtype
    variants = [
        shifted(flat, (row, column), shift).tobytes()
        for flat in (image, image[:, ::-1])
        for row in range(5)
        for column in range(5)
    ]
    found = [variants.index(one.tobytes()) for one in seen]  # each is one of the fifty
    # A false alarm once in 10,000 keys each.
    assert chisquare(np.bincount(found, minlength=50)).pvalue > 1e-4
    turned = sum(which >= 25 for which in found)
    assert binomtest(turned, n).pvalue > 1e-4


def test_each_step_has_its_own_and_a_key_decides():
    x = RNG.integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
    once, again, other = (Augmentation(1)(x, jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert (np.asarray(once) != np.asarray(other)).any()
    assert Augmentation()(x, jax.random.key(0)) is x


def fitted(x, **augmentation):
    model = Settings.from_dict(ENCODED).model((8, 8, 3))
    how = Augmentation(**augmentation)
    key = jax.random.key(2)
    return kaem.fit(model, x, key=key, steps=8, batch_size=16, log_every=4, augmentation=how)[0]


def leaves(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))]


def test_training_sees_what_varies_and_nothing_else():
    """Moving and mirroring change no image of one colour: such a training stays as it is."""
    flat = np.broadcast_to(RNG.integers(0, 256, (48, 1, 1, 3), dtype=np.uint8), (48, 8, 8, 3))
    for plain, varied in zip(
        leaves(fitted(flat)), leaves(fitted(flat, shift=2, mirror=True)), strict=True
    ):
        np.testing.assert_allclose(plain, varied, rtol=1e-4, atol=1e-6)
    x = RNG.integers(0, 256, (48, 8, 8, 3), dtype=np.uint8)
    pairs = zip(leaves(fitted(x)), leaves(fitted(x, shift=2)), strict=True)
    assert max(np.abs(plain - varied).max() for plain, varied in pairs) > 1e-3


def test_what_cannot_be_varied_is_refused():
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        Augmentation(-1)
    with pytest.raises(ValueError, match=r"for images .* larger than their shift"):
        Augmentation(8).check((8, 8, 3), persistent=False)
    with pytest.raises(ValueError, match="for images"):
        Augmentation(mirror=True).check((20,), persistent=False)
    chains = {"learner": {"kind": "langevin", "persistent": True}, "augmentation": {"shift": 1}}
    with pytest.raises(UserError, match="persistent chains keep the latents"):
        Settings.from_dict(merge(ENCODED, {**chains, "encoder": {"kind": "none"}})).model((8, 8, 3))
    Augmentation().check((20,), persistent=True)
