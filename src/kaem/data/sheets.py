"""Sheets of images: what samples look like, as one picture."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import write_atomically

MAX_PIXELS = 25_000_000  # of a sheet, which is to be looked at


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether data of this shape can be shown: height, width, and grey or RGB."""
    return len(shape) == 3 and shape[-1] in (1, 3)


def sheet_capacity(shape: tuple[int, ...], pad: int = 2) -> int:
    """Return how many images of this shape make a sheet of at most `MAX_PIXELS`."""
    height, width = (extent + pad for extent in shape[:2])
    return math.isqrt(MAX_PIXELS // (height * width)) ** 2


def sample_sheet(images: Any, columns: int | None = None, pad: int = 2) -> np.ndarray:
    """Return images [N, H, W, C] in [0, 1] as one uint8 sheet, roughly square."""
    x = np.asarray(images, np.float32)
    if not is_image(x.shape[1:]):
        raise UserError(f"a sheet shows images [N, H, W, 1 or 3], got shape {x.shape}.")
    x = (np.clip(x, 0, 1) * 255 + 0.5).astype(np.uint8)
    columns = columns or math.ceil(math.sqrt(len(x)))
    rows = math.ceil(len(x) / columns)
    n, h, w, c = x.shape
    sheet = np.full((rows * (h + pad) + pad, columns * (w + pad) + pad, c), 40, np.uint8)
    for i in range(n):
        top, left = pad + i // columns * (h + pad), pad + i % columns * (w + pad)
        sheet[top : top + h, left : left + w] = x[i]
    return sheet


def save_png(path: Path, sheet: np.ndarray, scale: int | None = None) -> None:
    """Write a sheet as PNG, enlarged by whole pixels until it is comfortable to look at."""
    from PIL import Image

    scale = scale or max(1, round(700 / max(sheet.shape[:2])))
    pixels = np.repeat(np.repeat(sheet, scale, axis=0), scale, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())
