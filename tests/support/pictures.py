"""Figures as they were written: decoded, of the right size, and not blank."""

from xml.etree import ElementTree

import numpy as np
from PIL import Image


def assert_drawn(path, width):
    """Check that a figure is so many inches wide, and shows lines and text, not a blank sheet."""
    if path.suffix == ".svg":
        root = ElementTree.fromstring(path.read_bytes())
        np.testing.assert_allclose(float(root.get("viewBox").split()[2]), 72 * width, rtol=1e-3)
        marks = [one for one in root.iter() if one.tag.endswith(("path", "use", "image"))]
        assert len(marks) > 30
        return
    with Image.open(path, formats=["PNG"]) as image:
        pixels = np.asarray(image.convert("RGB"), int)
    assert abs(pixels.shape[1] - 150 * width) <= 1
    ink = (pixels < 250).any(axis=2)
    assert 0.005 < ink.mean() < 0.95
    for edge in (ink[:2], ink[-2:], ink[:, :2], ink[:, -2:]):
        assert not edge.any()  # nothing is cut off
    rows, columns = (n // 2 for n in ink.shape)
    for half in (ink[:rows], ink[rows:], ink[:, :columns], ink[:, columns:]):
        assert half.any()
