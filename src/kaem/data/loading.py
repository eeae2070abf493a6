"""`load`: a dataset by name, or whatever is at a path, as one array."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from ..errors import UserError
from .arrays import Split, large_npy, read_array, read_cifar, read_idx
from .checks import checked
from .images import Options, read_images
from .matlab import read_mat
from .parquet import parquet_files, read_parquet
from .registry import DATASETS, find, search_folders, verify
from .resizing import fitted, in_rows
from .rows import Examples


def load(
    source: str,
    key: str | None = None,
    split: Split = "train",
    *,
    size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    mixed: bool = False,
    say: Callable[[str], None] = lambda _: None,
    memory: int | None = None,
) -> Any:
    """Return a dataset by name or path: uint8 images [N, H, W, C], or float32 [N, ...].

    Only the first `limit` examples are read. Images come out `size` x `size`, cropped to their
    central square. `channels` is 1 or 3, and refuses data that has others. `say` is told how many
    images of a folder or zip file were converted, or differ in size unless they are `mixed`.

    Everything is an array in memory, unless `memory` bounds its bytes: what would fill more then
    comes back as `kaem.data.rows.Rows`, which are indexed like an array and read from disk. Images
    and Parquet are decoded for that once, into the cache folder.
    """
    if split not in get_args(Split):
        raise UserError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}.")
    options = Options(size, channels, limit, mixed, say, memory)
    named = source in DATASETS
    x = _by_name(source, split, options) if named else _at_path(source, key, split, options)
    if limit is not None and x.ndim and len(x) > limit:
        x = x[:limit]
    return fitted(checked(x, source), source, options)


def _by_name(name: str, split: Split, options: Options) -> Examples:
    dataset = DATASETS[name]
    if not dataset.files:
        return dataset.read(Path(), split, options)
    wanted = dataset.file(split)
    found = find(name)[wanted]
    if found is None:
        places = ", ".join(str(f / dataset.folder) for f in search_folders())
        how = ", which says how to get it by hand" if dataset.by_hand else ""
        raise UserError(
            f"{name} is not on this machine: {wanted} was looked for in {places}. Run "
            f"`kaem data fetch {name}`{how}, set KAEM_DATA to the folder that contains "
            f"{dataset.folder}/, or give a file or folder with `--data PATH`."
        )
    verify(name, wanted, found)
    return dataset.read(found, split, options)


def _at_path(source: str, key: str | None, split: Split, options: Options) -> Examples:
    path = Path(source)
    if not path.exists():
        raise UserError(
            f"there is no dataset {source!r}: it is neither a registered name "
            f"({', '.join(DATASETS)}) nor an existing path. Check the spelling, run `kaem data list`, or "
            "say where it is now with --data."
        )
    if not (path.is_file() or path.is_dir()):  # reading a pipe may never end
        raise UserError(
            f"{source} is neither a file nor a folder, but a pipe, a socket or a device; save the data to a "
            "file and give that."
        )
    for dataset in DATASETS.values():
        if dataset.unpacked and path.name in dataset.forms(dataset.file(split)):
            return dataset.read(path, split, options)
        present = [f for f in dataset.files if path.is_dir() and dataset.locate(f, path)]
        if present:
            found = dataset.locate(dataset.file(split), path)
            if found is None:
                raise UserError(f"{source} has {present[0]} but no {dataset.file(split)}; add it.")
            return dataset.read(found, split, options)
    name = path.name.lower()
    if parquet_files(path):
        return read_parquet(path, key, options)
    if path.is_dir() or name.endswith(".zip"):
        return read_images(path, options)
    if name.endswith((".npy", ".npz")):
        large = large_npy(path, options.memory) if options.memory is not None else None
        return in_rows(large, options) if large else read_array(path, key, split)
    if name.endswith(".mat"):
        return read_mat(path, key, options.limit)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return read_cifar(path, split, options.limit)
    if name.endswith(".gz") or "ubyte" in name:
        return read_idx(path)
    raise UserError(
        f"{source} has a format that is not read; use a folder or .zip of images, .npy, .npz, "
        ".parquet, SVHN's .mat, CIFAR-10's .tar.gz, or idx.gz."
    )
