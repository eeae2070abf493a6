"""Draws of the model, as one sheet."""

from pathlib import Path

import jax
import numpy as np

from ...data.checks import checked_finite
from ...data.sheets import sample_sheet, save_png
from ..gallery import Gallery
from ._figure import Figure


def _draw(gallery: Gallery, path: Path) -> np.ndarray:
    key = jax.random.key(gallery.run.settings().training.seed)
    x = checked_finite(gallery.model.sample(key, gallery.count or 100))
    save_png(path, sample_sheet(x))
    return x


SAMPLES = Figure(
    about="draws of the model, with the seed that it was trained with",
    draw=_draw,
    options=("count",),
    formats=("png",),
    caption="100 samples",
    section="Samples",
    belongs=lambda gallery: gallery.has_images,
    wide=False,
)
