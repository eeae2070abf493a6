"""Readers: files to arrays of shape [N, ...], uint8 images or float tables, checked for sense."""

import gzip
import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ..errors import UserError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
ARRAY_KEYS = ("x_train", "train_x", "x", "images", "data", "arr_0")


def read_idx(path: Path) -> np.ndarray:
    """An MNIST-format file (idx1 or idx3, gzipped or not)."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} could not be decompressed ({error}); it is truncated or damaged. "
            "Delete it and run `kaem data fetch` again."
        ) from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UserError(f"{path} is not an idx file of bytes: it starts with {data[:4].hex()!r}.")
    rank = data[3]
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    body = data[4 + 4 * rank :]
    if len(body) != math.prod(shape):
        raise UserError(
            f"{path} should hold {math.prod(shape)} bytes for shape {shape}, got {len(body)}; "
            "it is truncated or damaged."
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_array(path: Path, key: str | None = None) -> np.ndarray:
    """A `.npy` file, or one array of a `.npz` file. Never unpickles."""
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return loaded[_choose_key(path, loaded.files, key)]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        if isinstance(error, UserError):
            raise
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error)
        raise UserError(
            f"{path} is not a readable NumPy file: {reason}. It may be truncated or another format; "
            "save plain numeric arrays with np.save or np.savez."
        ) from error


def _choose_key(path: Path, keys: list[str], key: str | None) -> str:
    if key is not None:
        if key not in keys:
            raise UserError(f"{path} has no array {key!r}; it holds {', '.join(keys)}.")
        return key
    for candidate in (*ARRAY_KEYS, *(keys if len(keys) == 1 else [])):
        if candidate in keys:
            return candidate
    raise UserError(
        f"{path} holds {', '.join(keys) or 'nothing'}; say which to use with --set data.key=NAME."
    )


def read_folder(path: Path) -> np.ndarray:
    """Every image below a folder, in name order; all must share size and channels."""
    from PIL import Image, UnidentifiedImageError

    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise UserError(
            f"{path} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}); point to the folder "
            "that does, or to a .npy or .npz file."
        )
    images: list[np.ndarray] = []
    for file in files:
        try:
            with Image.open(file) as image:
                mode = "L" if image.mode in ("1", "L", "LA", "I;16", "I", "F") else "RGB"
                pixels = np.asarray(image.convert(mode))
        except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
            raise UserError(
                f"{file} cannot be read as an image ({error}). Remove or repair it; "
                f"{len(images)} files before it were fine."
            ) from error
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if images and pixels.shape != images[0].shape:
            raise UserError(
                f"{file} has shape {pixels.shape} (height, width, channels), but {files[0]} has "
                f"{images[0].shape}; all images of a data set must have one size. Resize them first."
            )
        images.append(pixels)
    return np.stack(images)


def checked(x: np.ndarray, source: str) -> np.ndarray:
    """`x` as uint8 images [N, H, W, C] or float32 [N, ...], or an error that says what is wrong."""
    if x.dtype == np.bool_:
        x = x.astype(np.float32)
    if x.ndim < 2:
        raise UserError(
            f"{source} needs at least two axes, examples along the first, got shape {x.shape}; "
            "for one number per example, reshape it with x[:, None]."
        )
    if 0 in x.shape:
        raise UserError(f"{source} holds no data: its shape is {x.shape}. Check how it was saved.")
    if x.dtype == np.uint8:
        return x[..., None] if x.ndim == 3 else x
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
        raise UserError(
            f"{source} must hold real numbers, got dtype {x.dtype}; convert it to float32 or uint8."
        )
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if bad.any():
        first = np.flatnonzero(bad)
        raise UserError(
            f"{source} holds NaN or infinite values in {len(first)} of {len(x)} examples "
            f"(first at index {first[0]}); remove or impute them."
        )
    return x[..., None] if x.ndim == 3 else x
