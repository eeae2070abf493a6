"""Parquet: a column of images, a column of lists of numbers, or columns of numbers as rows.

A file, or a folder of files that continue one another. Images are bytes, or a struct with `bytes`, as
Hugging Face has them. What a file says of its sizes is checked before it is read, and it is read some
rows at a time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .archives import DAMAGE, check_ratio
from .decoding import Put, decoded
from .images import Images, Options, Seen
from .rows import Examples
from .store import written

_FOOTER = 2**25  # bytes of what a file says of itself
_BATCH = 2**22  # bytes of numbers that are read at a time
_IMAGES = 16  # that are read at a time


def parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files at a path: itself, or those in a folder, in name order."""
    if path.is_dir():
        return sorted(file for file in path.glob("*.parquet") if file.is_file())
    return [path] if path.name.lower().endswith(".parquet") else []


def read_parquet(path: Path, key: str | None, options: Options) -> Examples:
    """Read the column `key`, or the only one that can be meant, of a file or a folder of files."""
    files = parquet_files(path)
    table = Table(path, files, _columns(path, files[0], key), options)
    return decoded(table, options.memory, options.say)


class Table:
    """Rows of Parquet files: images, or numbers of one shape.

    `first` is how the first image is, and `kind` says that they are images.
    """

    def __init__(
        self,
        path: Path,
        files: list[Path],
        columns: list[str],
        options: Options,
        known: dict[str, Any] | None = None,
        alone: Any = None,
    ) -> None:
        self.path, self.files, self.columns, self.options = path, files, columns, options
        self.images: Images | None = None
        if known is not None:  # what the process that asks has found
            self.shape, self.dtype = tuple(known["shape"]), np.dtype(known["dtype"])
            if known["first"] is not None:
                name, extent, channels = known["first"]
                first = (name, tuple(extent), channels)
                self.images = Images(path, [], _nothing, options, None, first, alone)
            return
        counts = [_opened(file).metadata.num_rows for file in files]
        count = min(sum(counts), options.limit or sum(counts))
        if not count:
            raise UserError(f"{path} holds no rows. Check how it was saved.")
        file = next(file for file, n in zip(files, counts, strict=True) if n)
        about = _opened(file).metadata
        groups = [g for g in range(about.num_row_groups) if about.row_group(g).num_rows > 0]
        sample = next(self._batches(file, groups[0], 1), None) if groups else None
        if not sample:
            raise UserError(f"{path} says that it has {count} rows, and has none; it is damaged.")
        if _is_image(sample.schema.field(0).type) and len(columns) == 1:
            data = _bytes_of(sample, path, 0)[0]
            self.images = Images(path, ["row 0"], lambda _: data, options)
            self.shape, self.dtype = (count, *self.images.shape[1:]), np.dtype(np.uint8)
            self.images.shape = self.shape
        else:
            numbers = _numbers(sample, path, 0, None)
            self.shape = (count, *numbers.shape[1:])
            self.dtype = np.dtype(np.uint8 if numbers.dtype == np.uint8 else np.float32)
            packed = sum(file.stat().st_size for file in files)
            with _explained(path):
                check_ratio(packed, math.prod(self.shape) * self.dtype.itemsize)

    @property
    def what(self) -> str:
        return f"{self.shape[0]:,} rows of {self.path}"

    def made_of(self) -> Iterator[Any]:
        """Return everything that the examples are a function of."""
        from PIL import __version__

        yield self.recipe(), __version__
        for file in self.files:
            yield written(file)

    def recipe(self) -> dict[str, Any]:
        """Return how another process makes the same."""
        options = {"size": self.options.size, "mixed": self.options.mixed}
        first = self.images.first if self.images is not None else None
        known = {"shape": self.shape, "dtype": self.dtype.str, "first": first}
        files = [str(file) for file in self.files]
        how = {"kind": "table", "path": str(self.path), "files": files, "columns": self.columns}
        return how | {"options": options, "known": known}

    @classmethod
    @contextmanager
    def made(cls, recipe: dict[str, Any], alone: Any) -> "Iterator[Table]":
        """Yield what a recipe describes, in another process."""
        files, options = [Path(file) for file in recipe["files"]], Options(**recipe["options"])
        yield cls(Path(recipe["path"]), files, recipe["columns"], options, recipe["known"], alone)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Return what is read at a time: the groups of rows of the files."""
        start = 0
        for number, file in enumerate(self.files):
            metadata = _opened(file).metadata
            for group in range(metadata.num_row_groups):
                count = min(metadata.row_group(group).num_rows, self.shape[0] - start)
                if count > 0:
                    yield {"file": number, "group": group, "start": start, "count": count}
                start += max(count, 0)

    def read(self, task: dict[str, Any], put: Put) -> dict[str, Any]:
        """Put the rows of a group where they belong."""
        start, left, seen = task["start"], task["count"], Seen()
        many = _IMAGES
        if self.images is None:
            many = max(1, min(2**16, _BATCH * self.shape[0] // max(1, math.prod(self.shape) * 8)))
        with _explained(self.path):
            for batch in self._batches(self.files[task["file"]], task["group"], min(many, left)):
                batch = batch.slice(0, left)
                if self.images is not None:
                    some = _bytes_of(batch, self.path, start)
                    content = {f"row {i}": data for i, data in enumerate(some, start)}
                    for i, name in enumerate(content, start):
                        put(i, self.images.alike(name, i, seen, content.__getitem__)[None])
                else:
                    put(start, _numbers(batch, self.path, start, self.shape[1:]))
                start, left = start + len(batch), left - len(batch)
                if not left:
                    return seen.report()
        raise UserError(
            f"{self.path} says that it has {left} rows more than it has; it is damaged."
        )

    def heard(self, task: dict[str, Any], report: dict[str, Any]) -> None:
        """Take note of what reading a group noticed."""
        if self.images is not None:
            self.images.heard({"start": task["start"], "names": [f"row {task['start']}"]}, report)

    def notes(self) -> list[str]:
        """Return what was done to images that nobody asked for."""
        return self.images.notes() if self.images is not None else []

    def _batches(self, file: Path, group: int, many: int) -> Iterator[Any]:
        with _explained(file):
            table = _opened(file)
            about = table.metadata.row_group(group)
            for i in range(about.num_columns):
                column = about.column(i)
                if column.path_in_schema.split(".")[0] in self.columns:
                    check_ratio(column.total_compressed_size, column.total_uncompressed_size)
            yield from table.iter_batches(many, [group], self.columns, use_threads=False)


def _nothing(_: str) -> bytes:
    return b""


def _opened(path: Path) -> Any:
    """Open a Parquet file: what it says of itself is read, and no more."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise UserError(
            "reading Parquet needs pyarrow: run `pip install 'kaem[parquet]'`."
        ) from error
    with _explained(path):
        with open(path, "rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - 8))
            end = file.read(8)
        footer = int.from_bytes(end[:4], "little")
        if end[4:] != b"PAR1" or footer > size:
            raise ValueError("it does not end as one")
        if footer > _FOOTER:
            raise ValueError(f"it has {footer / 1e6:,.0f} MB about itself, expected at most 34")
        table = pyarrow.parquet.ParquetFile(
            path,
            pre_buffer=False,
            buffer_size=2**20,
            thrift_string_size_limit=_FOOTER,
            thrift_container_size_limit=2**20,
        )
        if table.metadata.num_rows < 0:
            raise ValueError("it claims a negative number of rows")
        return table


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say of which file it is that what pyarrow reads is damaged."""
    import pyarrow

    try:
        yield
    except UserError:
        raise
    except (*DAMAGE, NotImplementedError, MemoryError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0][:300].rstrip(".") if str(error) else "out of memory"
        raise UserError(
            f"{path} is not a readable Parquet file: {reason}. It may be truncated or another format; get it "
            "again, or save the numbers with np.save."
        ) from error


def _columns(path: Path, file: Path, key: str | None) -> list[str]:
    """Return the columns that examples are made of."""
    schema = _opened(file).schema_arrow
    known = {field.name: field.type for field in schema}
    listed = ", ".join(f"{name[:80]} ({str(kind)[:40]})" for name, kind in [*known.items()][:20])
    if key is not None:
        if key not in known:
            raise UserError(f"{path} has no column {key!r}; it holds {listed or 'nothing'}.")
        if not (_is_image(known[key]) or _is_number(_inner(known[key]))):
            raise UserError(
                f"column {key!r} of {path} holds {known[key]}, expected images (bytes), numbers or lists of "
                f"numbers; it holds {listed}."
            )
        return [key]
    for kind in (_is_image, lambda t: _inner(t) is not t and _is_number(_inner(t))):
        found = [name for name, of in known.items() if kind(of)]
        if len(found) == 1:
            return found
        if found:
            raise UserError(f"{path} holds {listed}; say which to use with --set data.key=NAME.")
    found = [name for name, of in known.items() if _is_number(of)]
    if not found:
        raise UserError(
            f"{path} holds {listed or 'nothing'}; expected a column of images (bytes), or columns of numbers "
            "or lists of numbers."
        )
    return found


def _inner(kind: Any) -> Any:
    """Return the type within lists."""
    from pyarrow import types

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_image(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_image(kind.field("bytes").type)
    return types.is_binary(kind) or types.is_large_binary(kind)


def _bytes_of(batch: Any, path: Path, start: int) -> list[bytes]:
    """Return the content of images."""
    from pyarrow import types

    column = batch.column(0)
    if types.is_struct(column.type):
        column = column.field("bytes")
    found = column.to_pylist()
    if None in found:
        raise UserError(
            f"{path} has no image in row {start + found.index(None)}; remove or fill the row."
        )
    return found


def _numbers(batch: Any, path: Path, start: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return rows of numbers, all of one `shape`, that of the first if None."""
    parts = [_dense(batch.column(i), path, start) for i in range(batch.num_columns)]
    x = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
    x = x[:, None] if x.ndim == 1 else x
    if shape is not None and x.shape[1:] != shape:
        raise UserError(
            f"{path} has numbers of shape {x.shape[1:]} in row {start}, but {shape} in row 0; examples of a "
            "data set must have one shape."
        )
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all() and np.isfinite(x).all():
        raise UserError(
            f"{path} holds numbers up to {np.abs(x).max():.3g}, more than float32 can (3.4e38), near row "
            f"{start}; scale them."
        )
    return single


def _dense(column: Any, path: Path, start: int) -> np.ndarray:
    """Return a column of numbers, or of lists of equal length, as an array."""
    from pyarrow import types

    count, shape, values = len(column), [], column
    while True:
        if values.null_count:
            raise UserError(f"{path} has nulls near row {start}; remove or impute them.")
        if _inner(values.type) is values.type:
            break
        if types.is_fixed_size_list(values.type):
            lengths = np.full(len(values), values.type.list_size)
        else:
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) and (lengths != lengths[0]).any():
            raise UserError(
                f"{path} has lists of {lengths.min()} to {lengths.max()} numbers near row {start}; examples "
                "of a data set must have one shape."
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(count, *shape)
