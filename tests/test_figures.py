"""What the figures show, not their pixels."""

import numpy as np
import pytest
from scipy import stats

from kaem import UserError
from kaem.data.sheets import sample_sheet, save_png
from kaem.interpret.densities import density_curves, density_sheet
from kaem.interpret.figures import training_curves
from test_priors import prior_with


def test_density_curves_are_densities_in_order_of_departure():
    prior = prior_with("rbf", strength=1.5)
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
def test_density_sheet_is_written(tmp_path, suffix):
    path = tmp_path / f"d.{suffix}"
    assert len(density_sheet(prior_with(), path, count=4)) == 4
    assert path.stat().st_size > 5000
    with pytest.raises(UserError, match=r"png or \.svg"):
        density_sheet(prior_with(), tmp_path / "d.pdf")


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
    assert (tmp_path / "t.png").stat().st_size > 5000
    with pytest.raises(UserError, match="no history"):
        training_curves([], tmp_path / "t.png")
