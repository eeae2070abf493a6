"""Whether arrays are data that models can learn from, or what is wrong with them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError
from .rows import Examples


def checked(x: Any, source: str) -> Any:
    """Return `x` as uint8 images [N, H, W, C] or float32 [N, ...], or raise, saying what is wrong.

    Examples on disk stay there.
    """
    if x.dtype == np.bool_:
        x = x.astype(np.float32)
    if x.ndim < 2:
        raise UserError(
            f"{source} needs at least two axes, examples along the first, got shape {x.shape}; "
            "for one number per example, reshape it with x[:, None]."
        )
    if 0 in x.shape:
        raise UserError(f"{source} holds no data: its shape is {x.shape}. Check how it was saved.")
    if hasattr(x, "layout") and x.survey.bad:
        told = x.survey
        raise _not_finite(told.bad, told.first_bad, told.largest, len(x), source)
    if x.dtype == np.uint8 or hasattr(x, "layout"):
        return x.reshape(*x.shape, 1) if x.ndim == 3 else x
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
        raise UserError(
            f"{source} must hold real numbers, got dtype {x.dtype}; convert it to float32 or uint8."
        )
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(single.reshape(len(x), -1)).all(axis=1))
    if len(bad):
        largest = float(np.abs(x).max()) if np.isfinite(x).all() else None
        raise _not_finite(len(bad), bad[0], largest, len(x), source)
    return single.reshape(*x.shape, 1) if x.ndim == 3 else single


def _not_finite(bad: int, first: int, largest: float | None, count: int, source: str) -> UserError:
    """Return what to say of examples that are not finite; `largest` if they were so before they became float32."""
    if largest is not None:
        return UserError(
            f"{source} holds numbers up to {largest:.3g}, more than float32 can (3.4e38), "
            f"first in example {first}; scale them."
        )
    return UserError(
        f"{source} holds NaN or infinite values in {bad} of {count} examples "
        f"(first at index {first}); remove or impute them."
    )


def checked_finite(made: ArrayLike) -> np.ndarray:
    """Return what a model made, or raise if there are no numbers in it to show or to measure."""
    x = np.asarray(made)
    if not np.isfinite(x).all():
        raise UserError(
            "what the model draws is not finite: its parameters are too large to compute with, or "
            "damaged. Train it again with lower rates, or restore the file."
        )
    return x


def _range(x: Any) -> tuple[float, float]:
    """Return the least and the largest number, which examples on disk know."""
    if hasattr(x, "layout"):
        return x.survey.low, x.survey.high
    return float(x.min()), float(x.max())


def trainable_on(
    x: Examples,
    source: str,
    *,
    batch_size: int,
    output: str,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Raise unless a model with this `output` (and data `shape`, if it has one yet) can be trained on `x`."""
    if shape is not None and x.shape[1:] != shape:
        raise UserError(
            f"the model generates data of shape {shape}, but {source} holds examples of shape "
            f"{x.shape[1:]}; build the generator for that shape."
        )
    if output == "sigmoid" and x.dtype != np.uint8:
        low, high = _range(x)
        if low < 0 or high > 1:
            raise UserError(
                f"{source} has values from {low:.4g} to {high:.4g}, but the model makes values in "
                "[0, 1]; scale the data (images: divide by 255), or, with any model but a DDPM, use "
                "an identity output (`--set generator.output=identity`)."
            )
    if len(x) < batch_size:
        raise UserError(
            f"{source} has {len(x)} of the {batch_size} examples that one batch needs; add data, or "
            f"use smaller batches with `--set training.batch_size={len(x)}`."
        )
