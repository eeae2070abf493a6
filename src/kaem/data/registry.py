"""Datasets by name, where they are looked for, their checksums, and how to fetch them.

A dataset lives in `$KAEM_DATA/<folder>` or the user's cache, in its canonical files. Anything
else is a path: a folder of images, a `.npy` or a `.npz` file.
"""

import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import UserError
from .images import checked, read_array, read_folder, read_idx

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Dataset:
    """A named dataset: canonical files with SHA-256 checksums, and mirrors to fetch them from."""

    title: str
    shape: tuple[int, ...]
    train: int
    folder: str = ""
    files: tuple[tuple[str, str], ...] = ()
    mirrors: tuple[str, ...] = ()
    licence: str = ""


DATASETS: dict[str, Dataset] = {
    "mnist5k": Dataset(
        "5,000 MNIST training digits, embedded in the package",
        (28, 28, 1),
        5000,
        licence="CC BY-SA 3.0, Y. LeCun and C. Cortes",
    ),
    "mnist": Dataset(
        "MNIST handwritten digits",
        (28, 28, 1),
        60000,
        "mnist",
        (
            (
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        licence="CC BY-SA 3.0, Y. LeCun and C. Cortes",
    ),
    "fashion-mnist": Dataset(
        "Fashion-MNIST articles of clothing",
        (28, 28, 1),
        60000,
        "fashion_mnist",
        (
            (
                "train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
        ),
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        licence="MIT, Zalando SE",
    ),
}


def cache_folder() -> Path:
    """Where fetched data and feature weights are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kaem"


def search_folders() -> list[Path]:
    """`$KAEM_DATA` first, then the cache."""
    chosen = os.environ.get("KAEM_DATA")
    return ([Path(chosen)] if chosen else []) + [cache_folder()]


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(name: str) -> dict[str, Path | None]:
    """Where each of a dataset's files is, or None."""
    dataset = DATASETS[name]
    found: dict[str, Path | None] = {}
    for file, _ in dataset.files:
        candidates = (folder / dataset.folder / file for folder in search_folders())
        found[file] = next((path for path in candidates if path.is_file()), None)
    return found


def verify(name: str, file: str, path: Path) -> None:
    """Raise unless `path` has the checksum that `file` of dataset `name` must have."""
    expected = dict(DATASETS[name].files)[file]
    got = sha256(path)
    if got != expected:
        raise UserError(
            f"{path} is not the canonical {file} of {name}: its SHA-256 is {got[:16]}..., expected "
            f"{expected[:16]}.... It is truncated, damaged or another file; delete it and run "
            f"`kaem data fetch {name}`."
        )


def load_named(name: str, split: Split = "train") -> np.ndarray:
    """A registered dataset as uint8 images [N, H, W, C]."""
    if name == "mnist5k":
        with resources.as_file(resources.files("kaem.data") / "mnist_5k.npz") as path:
            return read_array(path, "x")
    wanted = next(f for f, _ in DATASETS[name].files if f.startswith("t10k") == (split == "test"))
    found = find(name)[wanted]
    if found is None:
        places = ", ".join(str(f / DATASETS[name].folder) for f in search_folders())
        raise UserError(
            f"{name} is not on this machine: {wanted} was looked for in {places}. Run "
            f"`kaem data fetch {name}`, set KAEM_DATA to the folder that contains "
            f"{DATASETS[name].folder}/, or use the embedded `mnist5k`."
        )
    verify(name, wanted, found)
    return checked(read_idx(found), str(found))


def load(source: str, key: str | None = None, split: Split = "train") -> np.ndarray:
    """A dataset by name or path: uint8 images [N, H, W, C], or float32 [N, ...]."""
    if source in DATASETS:
        return load_named(source, split)
    path = Path(source)
    if path.is_dir():
        if (path / "train-images-idx3-ubyte.gz").is_file():
            prefix = "t10k" if split == "test" else "train"
            path = path / f"{prefix}-images-idx3-ubyte.gz"
            return checked(read_idx(path), str(path))
        return checked(read_folder(path), source)
    if not path.exists():
        raise UserError(
            f"there is no dataset {source!r}: it is neither a registered name "
            f"({', '.join(DATASETS)}) nor an existing path. Check the spelling, or run "
            "`kaem data list`."
        )
    if path.suffix in (".npy", ".npz"):
        return checked(read_array(path, key), source)
    if path.suffix == ".gz" or "ubyte" in path.name:
        return checked(read_idx(path), source)
    raise UserError(
        f"{source} has a format that is not read; use a folder of images, .npy, .npz or idx.gz."
    )


def fetch(name: str, progress: bool = False) -> list[Path]:
    """Download a dataset's missing files to `$KAEM_DATA` or the cache, checked and whole."""
    dataset = DATASETS[name]
    if not dataset.files:
        return []
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise UserError("downloading needs pooch: run `pip install 'kaem[data]'`.") from error
    paths = []
    for file, checksum in dataset.files:
        present = find(name)[file]
        if present is not None and sha256(present) == checksum:
            paths.append(present)
            continue
        target = search_folders()[0] / dataset.folder
        failures = []
        for mirror in dataset.mirrors:
            try:
                got = pooch.retrieve(
                    mirror + file, f"sha256:{checksum}", file, target, progressbar=progress
                )
                paths.append(Path(got))
                break
            except Exception as error:
                failures.append(f"{mirror}: {type(error).__name__}")
        else:
            raise UserError(
                f"{file} of {name} could not be fetched ({'; '.join(failures)}). Check the network, "
                f"or put the file into {target} by hand."
            )
    return paths
