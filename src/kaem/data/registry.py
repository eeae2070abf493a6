"""Datasets by name, where they are looked for, their checksums, and how to fetch them.

A dataset lives in `$KAEM_DATA/<folder>` or the user's cache, in its canonical files.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ..cache import cache_folder
from ..errors import UserError
from ..files import sha256
from .arrays import Split, read_array, read_cifar, read_idx
from .images import Options, image_files, read_celeba
from .matlab import read_mat
from .rows import Examples

Reader = Callable[[Path, Split, Options], Examples]


@dataclass(frozen=True)
class Dataset:
    """A named dataset: canonical files with SHA-256 checksums, their reader, and their mirrors.

    `files` are the training and the test file, or one with both. An archive may also lie there
    unpacked, as a folder of `unpacked` images. `by_hand` says how to get what no program can.
    """

    title: str
    shape: tuple[int, ...]
    train: int
    read: Reader
    folder: str = ""
    files: dict[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    licence: str = ""
    unpacked: int = 0
    by_hand: str = ""

    def file(self, split: Split) -> str:
        return list(self.files)[0 if split == "train" else -1]

    def forms(self, file: str) -> tuple[str, ...]:
        """Return the names under which `file` may be there."""
        return (file, Path(file).stem) if self.unpacked else (file,)

    def locate(self, file: str, folder: Path) -> Path | None:
        """Return `file` in `folder`, as it is or unpacked."""
        for path in (folder / form for form in self.forms(file)):
            if path.is_file() if path.name == file else path.is_dir():
                return path
        return None


def _read_embedded(_: Path, split: Split, options: Options) -> Examples:
    if split == "test":
        raise UserError("mnist5k has training digits only; for test digits use `mnist`.")
    with resources.as_file(resources.files("kaem.data") / "mnist_5k.npz") as embedded:
        return read_array(embedded, "x")


DATASETS: dict[str, Dataset] = {
    "mnist5k": Dataset(
        "5,000 MNIST training digits, embedded in the package",
        (28, 28, 1),
        5000,
        _read_embedded,
        licence="CC BY-SA 3.0, Y. LeCun and C. Cortes",
    ),
    "mnist": Dataset(
        "MNIST handwritten digits",
        (28, 28, 1),
        60000,
        lambda path, split, options: read_idx(path),
        "mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        },
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
        lambda path, split, options: read_idx(path),
        "fashion_mnist",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        },
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        licence="MIT, Zalando SE",
    ),
    "svhn": Dataset(
        "SVHN, digits of house numbers",
        (32, 32, 3),
        73257,
        lambda path, split, options: read_mat(path, limit=options.limit),
        "svhn",
        {
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
        ("http://ufldl.stanford.edu/housenumbers/",),
        licence="non-commercial use, Y. Netzer et al.",
    ),
    "cifar10": Dataset(
        "CIFAR-10, small photographs of ten kinds of things",
        (32, 32, 3),
        50000,
        lambda path, split, options: read_cifar(path, split, options.limit),
        "cifar10",
        {
            "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        },
        ("https://www.cs.toronto.edu/~kriz/",),
        licence="none stated, A. Krizhevsky",
    ),
    "celeba": Dataset(
        "CelebA, faces cropped and resized to 64 x 64",
        (64, 64, 3),
        162770,
        read_celeba,
        "celeba",
        {
            "img_align_celeba.zip": "46fb89443c578308acf364d7d379fe1b9efb793042c0af734b6112e4fd3a8c74",
        },
        licence="non-commercial research, MMLAB, The Chinese University of Hong Kong",
        unpacked=202599,
        by_hand="it is given out through a Google Drive form. Open "
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, agree to its terms, and download "
        "img_align_celeba.zip (1.4 GB) from `Align&Cropped Images`",
    ),
}


def search_folders() -> list[Path]:
    """Return where data is looked for: `$KAEM_DATA` first, then the cache."""
    chosen = os.environ.get("KAEM_DATA")
    return ([Path(chosen)] if chosen else []) + [cache_folder()]


def find(name: str) -> dict[str, Path | None]:
    """Return where each of a dataset's files is, or None."""
    dataset = DATASETS[name]
    found: dict[str, Path | None] = {}
    for file in dataset.files:
        places = (dataset.locate(file, top / dataset.folder) for top in search_folders())
        found[file] = next((path for path in places if path is not None), None)
    return found


def verify(name: str, file: str, path: Path) -> None:
    """Raise unless `path` is what `file` of dataset `name` must be.

    A file has its checksum. Of a folder that an archive was unpacked to, the images are counted.
    """
    dataset = DATASETS[name]
    if path.is_dir():
        with image_files(path) as (names, _):
            count = len(names)
        if count != dataset.unpacked:
            raise UserError(
                f"{path} holds {count} images, but {file} of {name} has {dataset.unpacked}; unpack "
                f"it again. To use what is there, give the path {path} instead of {name}."
            )
        return
    expected = dataset.files[file]
    if (got := sha256(path)) != expected:
        raise UserError(
            f"{path} is not the canonical {file} of {name}: its SHA-256 is {got[:16]}..., expected "
            f"{expected[:16]}.... It is truncated, damaged or another file; delete it and run "
            f"`kaem data fetch {name}`."
        )


def fetch(name: str, progress: bool = False) -> list[Path]:
    """Download a dataset's missing files to `$KAEM_DATA` or the cache, checked and whole."""
    dataset = DATASETS[name]
    if dataset.by_hand:
        return [_found_by_hand(name, file) for file in dataset.files]
    if not dataset.files:
        return []
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise UserError("downloading needs pooch: run `pip install 'kaem[data]'`.") from error
    paths = []
    for file, checksum in dataset.files.items():
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


def _found_by_hand(name: str, file: str) -> Path:
    path = find(name)[file]
    if path is None:
        dataset = DATASETS[name]
        target = search_folders()[0] / dataset.folder
        raise UserError(
            f"{name} cannot be fetched by a program: {dataset.by_hand}. Put it into {target}, or "
            f"unpack it to {target / Path(file).stem}, and run `kaem data check {name}`."
        )
    verify(name, file, path)
    return path
