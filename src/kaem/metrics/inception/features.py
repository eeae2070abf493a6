"""Features of images: the checks they pass, what extracts them, and a cache that survives.

An extractor is any callable from uint8 images [n, H, W, 3] to features [n, d]; `Extractor` is the
InceptionV3 of published numbers. `extract` keeps the features of each batch in a file named by a
hash of the images and of what extracted them: an interrupted run continues where it was, and new
images or other weights never meet old features.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from ...data.arrays import read_npy
from ...errors import UserError
from ...files import digest, write_atomically
from ...parallel import SPLIT, WHOLE, batch_mesh, everywhere
from .network import FEATURES, SIZE, features
from .weights import find_weights, load_weights

Images = UInt8[np.ndarray, "n H W 3"]
Features = Float[np.ndarray, "n d"]

_BATCH = 8  # images at once: their layers fit the caches, and more are slower on CPU
# YNNPACK, to which XLA gives convolutions on CPU, takes half as long again as XLA's own.
_FAST = {"xla_cpu_experimental_ynn_fusion_type": ""}


class Extractor:
    """2048 features of the InceptionV3 for FID; `path` as for `find_weights`."""

    name = f"inception-2015-12-05, pool3, TensorFlow 1 bilinear to {SIZE}"
    dims = FEATURES

    def __init__(self, path: str | None = None) -> None:
        self.path = find_weights(path)
        self.weights, self.sha256 = load_weights(self.path)
        self._mesh = batch_mesh(_BATCH)
        self._placed = everywhere(jax.tree.map(jax.numpy.asarray, self.weights), self._mesh)
        function: Callable[..., Any] = features
        if self._mesh is not None:
            splits = (WHOLE, SPLIT)
            function = jax.shard_map(features, mesh=self._mesh, in_specs=splits, out_specs=SPLIT)
        self._compiled = jax.jit(function, compiler_options=_options())

    def __call__(self, images: Images) -> Features:
        found = np.empty((len(images), FEATURES), np.float32)
        for start in range(0, len(images), _BATCH):
            some = images[start : start + _BATCH]
            missing = ((0, _BATCH - len(some)), *[(0, 0)] * 3)  # one shape is compiled once
            full = np.pad(some, missing)
            found[start : start + _BATCH] = self._compiled(self._placed, full)[: len(some)]
        return found


def _options() -> dict[str, Any] | None:
    """`_FAST` on CPU, where this version of XLA knows it."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x + 1, compiler_options=_FAST).lower(0.0).compile()
    except Exception:  # another type in each version
        return None
    return _FAST


def extract(
    images: Images,
    extractor: Callable[[np.ndarray], Any],
    *,
    batch: int = 128,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Features:
    """Features of all images.

    **Arguments:** `extractor` sees `batch` images at a time; with a `cache` folder, it must have a
    `name`, and a `sha256` if it has weights. `progress` is told how many of how many are done.
    """
    name = getattr(extractor, "name", None)
    if cache is not None and name is None:
        raise ValueError(
            f"features of {extractor!r} cannot be cached: it has no `name` that tells them from "
            "those of other extractors. Give it one, or use cache=None."
        )
    parts = []
    for start in range(0, len(images), batch):
        some = np.ascontiguousarray(images[start : start + batch])
        header = f"{name}\n{getattr(extractor, 'sha256', '')}\n{some.dtype} {some.shape}\n"
        file = cache / f"{digest(some, header=header)}.npy" if cache is not None else None
        made = _cached(file, len(some)) if file is not None else None
        if made is None:
            made = np.asarray(extractor(some), np.float32)
            if made.ndim != 2 or len(made) != len(some) or not np.isfinite(made).all():
                raise ValueError(
                    f"{name or extractor!r} gave features of shape {made.shape} for {len(some)} "
                    f"images, expected finite numbers of shape ({len(some)}, d)."
                )
            if file is not None:
                buffer = io.BytesIO()
                np.save(buffer, made, allow_pickle=False)
                write_atomically(file, buffer.getvalue())
        parts.append(made)
        if progress is not None:
            progress(start + len(some), len(images))
    if not parts:
        raise ValueError("there are no images to extract features from, expected at least one.")
    return np.concatenate(parts)


def _cached(file: Path, count: int) -> Features | None:
    """What `file` holds, or None if it is not there, or damaged."""
    try:
        with open(file, "rb") as opened:
            found = read_npy(opened, file.stat().st_size)
    except (OSError, ValueError):
        return None
    whole = found.ndim == 2 and len(found) == count
    return found if whole and found.dtype == np.float32 and np.isfinite(found).all() else None


def checked_images(x: np.ndarray, source: str) -> Images:
    """RGB images as uint8, from uint8 or from floats in [0, 1]."""
    x = np.asarray(x)
    if x.ndim == 3 or (x.ndim == 4 and x.shape[-1] == 1):
        raise UserError(
            f"{source} has grey images (shape {x.shape}), expected RGB [N, H, W, 3]: Inception has "
            "seen colour photographs only, and its distances mean nothing here. Use the proxy "
            "instead (`kaem evaluate --proxy`)."
        )
    if x.ndim != 4 or x.shape[-1] != 3 or 0 in x.shape:
        raise UserError(
            f"{source} has shape {x.shape}, expected RGB images [N, H, W, 3]; move channels to the "
            "last axis, and give at least one image."
        )
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UserError(
            f"{source} has type {x.dtype}, expected uint8 (0 to 255) or floats in [0, 1]; convert "
            "it with .astype(np.uint8)."
        )
    if not np.isfinite(x).all():
        raise UserError(
            f"{source} has NaN or infinite pixels; find out which images are broken and leave them "
            "out, or train again if a model made them."
        )
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        remedy = "rescale them, as (x + 1) / 2 does for [-1, 1]"
        if low >= 0:
            remedy = "these look like 0 to 255: divide by 255, or use .astype(np.uint8)"
        raise UserError(
            f"{source} has floats from {low:.4g} to {high:.4g}, expected [0, 1]; {remedy}."
        )
    return np.round(x * 255).astype(np.uint8)


def checked_pair(
    a: np.ndarray, b: np.ndarray, sources: tuple[str, str] = ("the first set", "the second set")
) -> tuple[Images, Images]:
    """Both sets as uint8; refuses two that were evidently scaled differently."""
    pair = checked_images(a, sources[0]), checked_images(b, sources[1])
    highest = [int(x.max()) for x in pair]
    if min(highest) <= 1 < max(highest):
        dark, light = (sources[i] for i in np.argsort(highest))
        raise UserError(
            f"the brightest pixel of {dark} is {min(highest)} of 255, that of {light} is "
            f"{max(highest)}: {dark} was divided by 255 once too often, or numbers in [0, 1] were "
            "cast to uint8. Give floats in [0, 1], or multiply by 255 before casting."
        )
    return pair
