"""Samples of a trained model, in memory or as a file."""

import io
import math
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..data.checks import checked_finite
from ..data.sheets import MAX_PIXELS, is_image, sample_sheet, save_png, sheet_capacity
from ..errors import UserError
from ..files import write_atomically
from ..loading import load
from .folder import checked_output

_CHUNK = 1000  # samples drawn at once: one seed makes the same ones, however they are used
_MAX_GIGABYTES = 4


def draws(model: Any, n: int, seed: int = 0, noise: bool = False) -> Iterator[np.ndarray]:
    """Yield `n` samples of a model, at most 1,000 at a time; with `noise`, draws from p(x)."""
    chunk = min(n, _CHUNK)
    draw = model.sample_with_noise if noise else model.sample
    keys = jax.random.split(jax.random.key(seed), -(-n // chunk))
    for start, key in zip(range(0, n, chunk), keys, strict=True):
        yield checked_finite(draw(key, chunk))[: n - start]


def check_request(n: int, output: str | PathLike[str] | None) -> None:
    """Raise if no model could be sampled so, or not into such a file."""
    if n < 1:
        raise UserError(f"-n must be at least 1, got {n}.")
    if output is not None:
        checked_output(output, ".png", ".npz")


def sample(
    source: Any,
    n: int = 64,
    *,
    seed: int = 0,
    noise: bool = False,
    output: str | PathLike[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> np.ndarray:
    """Draw `n` samples [n, *data_shape] of a model, a model file or a run folder.

    **Arguments:** with `noise` they are draws from p(x), not its means; `output` is a `.png` sheet or
    `.npz` arrays to write as well; `say` hears of what was clipped.
    """
    check_request(n, output)
    path = None if output is None else Path(output)
    model = load(source) if isinstance(source, str | PathLike) else source
    _check(model, n, path, noise)
    x = np.concatenate(list(draws(model, n, seed, noise)))
    sheet = path is not None and path.suffix == ".png"
    if noise and model.output == "sigmoid":
        outside = np.mean((x < 0) | (x > 1))
        fate = "clipped in the sheet; -o FILE.npz keeps them" if sheet else "left as they are"
        say(f"note: {outside:.1%} of the numbers lie outside [0, 1] with noise, and are {fate}")
    if path is None:
        return x
    if sheet:
        save_png(path, sample_sheet(x))
    else:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, x=x)
        write_atomically(path, buffer.getvalue())
    return x


def _check(model: Any, n: int, path: Path | None, noise: bool) -> None:
    """Raise if so many samples cannot be drawn, or not be written to such a file."""
    gigabytes = n * math.prod(model.data_shape) * 4 / 1e9
    if gigabytes > _MAX_GIGABYTES:
        raise UserError(
            f"{n} samples would take {gigabytes:.0f} GB of memory; draw at most "
            f"{_MAX_GIGABYTES} GB at a time, with a different --seed for each file."
        )
    if path and path.suffix == ".png":
        if not is_image(model.data_shape):
            raise UserError(
                f"the model makes data of shape {model.data_shape}, not images; use -o FILE.npz."
            )
        if n > (most := sheet_capacity(model.data_shape)):
            raise UserError(
                f"a sheet of {n} images is too large to be looked at, expected at most {most} of "
                f"shape {model.data_shape}, {MAX_PIXELS / 1e6:.0f} million pixels; use -o FILE.npz."
            )
    if noise and not hasattr(model, "sample_with_noise"):
        raise UserError(
            f"a {type(model).__name__} has no observation noise that could be added: its samples are "
            "draws from p(x) as they are; leave --noise out."
        )
