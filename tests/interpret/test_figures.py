"""What the figures show, not their pixels."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats

from kaem import UserError
from kaem.data.sheets import sample_sheet, save_png
from kaem.interpret.figures.densities import density_curves, density_sheet
from kaem.interpret.figures.training import training_curves
from kaem.priors import UnivariatePrior
from support.pictures import assert_drawn


@pytest.fixture(scope="module")
def prior():
    """3 x 2 densities with energies of visible size."""
    prior = UnivariatePrior(2, 3, key=jax.random.key(0))
    values = 1.5 * jax.random.normal(jax.random.key(1), prior.energies.basis.coefficients.shape)
    return eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, values)


def test_density_curves_are_densities_in_order_of_departure(prior):
    curves = density_curves(prior, count=6)
    departures = [c.departure for c in curves]
    assert departures == sorted(departures, reverse=True)
    assert len({c.place for c in curves}) == 6
    for c in curves:
        np.testing.assert_allclose(np.trapezoid(c.density, c.z), 1, atol=1e-4)
        truncated = stats.truncnorm(-1.5, 1.5).pdf(c.z)
        np.testing.assert_allclose(c.reference, truncated, atol=1e-4)
        kl = np.trapezoid(c.density * np.log(c.density / c.reference), c.z)
        np.testing.assert_allclose(c.departure, kl, atol=1e-3)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_density_sheet_is_written(prior, tmp_path, suffix):
    path = tmp_path / f"d.{suffix}"
    curves = density_curves(prior, count=4)
    assert len(curves) == 4
    density_sheet(prior, curves, path)
    assert_drawn(path, 1.7 * 3 + 0.4)  # three columns
    with pytest.raises(UserError, match=r"png or \.svg"):
        density_sheet(prior, curves, tmp_path / "d.pdf")


def test_sample_sheet_places_every_image(tmp_path):
    images = np.linspace(0, 1, 5)[:, None, None, None] * np.ones((5, 3, 4, 1))
    sheet = sample_sheet(images, columns=3, pad=1)
    assert sheet.shape == (2 * 4 + 1, 3 * 5 + 1, 1)
    for i, value in enumerate((0, 64, 128, 191, 255)):
        top, left = 1 + i // 3 * 4, 1 + i % 3 * 5
        assert (sheet[top : top + 3, left : left + 4] == value).all()
    save_png(tmp_path / "s.png", sheet)
    from PIL import Image

    with Image.open(tmp_path / "s.png") as image:
        assert image.size[0] % sheet.shape[1] == 0
    with pytest.raises(UserError, match="images"):
        sample_sheet(np.zeros((3, 4)))


def test_training_curves_show_the_history(tmp_path):
    history = [
        {"step": s, "log_likelihood": -s, "log_marginal": -s - 1, "ess": 2.0} for s in (5, 10)
    ]
    series = training_curves(history, tmp_path / "t.png")
    np.testing.assert_array_equal(series["step"], [5, 10])
    np.testing.assert_array_equal(series["log_likelihood"], [-5, -10])
    assert_drawn(tmp_path / "t.png", 7.2)
    with pytest.raises(UserError, match="no history"):
        training_curves([], tmp_path / "t.png")
