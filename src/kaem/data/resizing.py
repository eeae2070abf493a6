"""Arrays that must be laid out anew: images of another size, or numbers in column order."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .decoding import Put, decoded
from .images import KINDS, Options, pixels_of, require_channels
from .rows import Examples, Layout, Rows
from .store import surveyed, written

_BYTES = 2**24  # that are read at a time


def fitted(x: Examples, source: str, options: Options) -> Examples:
    """Return `x` with the size and the channels that were asked for, or raise, saying why not."""
    size, image = options.size, x.ndim == 4
    if options.channels is not None:
        if not image:
            raise UserError(
                f"{source} holds examples of shape {x.shape[1:]}, which are no images, so it has no "
                f"{options.channels} channels; leave data.channels out (`--set data.channels=none`)."
            )
        require_channels(x.shape[3], options.channels, source)
    if size is None or (image and x.shape[1:3] == (size, size)):
        return x
    if not image or x.dtype != np.uint8 or x.shape[3] not in KINDS:
        raise UserError(
            f"{source} holds {x.dtype} examples of shape {x.shape[1:]}; only uint8 images, grey or "
            f"RGB, are resized to data.size={size}. Resize it yourself, or leave data.size out "
            "(`--set data.size=none`)."
        )
    layout = getattr(x, "layout", None)
    most = None if layout is None else options.memory  # other processes see files, and no arrays
    return decoded(Arrays(x, source, size, layout), most, options.say)


def in_rows(layout: Layout, options: Options) -> Examples:
    """Return the first examples of an array on disk, read where they are or, from columns, laid out anew."""
    count = min(layout.shape[0], options.limit or layout.shape[0])
    if not layout.by_columns:
        return surveyed(Rows(replace(layout, shape=(count, *layout.shape[1:]))))
    x = layout.opened()[:count]
    return decoded(Arrays(x, layout.path, layout=layout), options.memory, options.say)


class Arrays:
    """Examples of an array, in memory or on disk, laid out anew: resized, or out of columns."""

    def __init__(
        self, x: Examples, source: str, size: int | None = None, layout: Layout | None = None
    ) -> None:
        self.x, self.source, self.size, self.layout = x, source, size, layout
        self.dtype = np.dtype(np.uint8 if x.dtype == np.uint8 else np.float32)
        self.shape = x.shape if size is None else (len(x), size, size, x.shape[3])

    @property
    def what(self) -> str:
        return f"{self.shape[0]:,} examples of {self.source}"

    def made_of(self) -> Iterator[Any]:
        """Return everything that the examples are a function of."""
        from PIL import __version__

        assert self.layout is not None
        yield self.recipe(), __version__, written(Path(self.layout.path))

    def recipe(self) -> dict[str, Any]:
        """Return how another process makes the same."""
        assert self.layout is not None
        how = {"kind": "arrays", "source": self.source, "size": self.size}
        return how | {"layout": asdict(self.layout)}

    @classmethod
    @contextmanager
    def made(cls, recipe: dict[str, Any], alone: Any) -> "Iterator[Arrays]":
        """Yield what a recipe describes, in another process."""
        layout = Layout(**recipe["layout"])
        yield cls(layout.opened(), recipe["source"], recipe["size"], layout)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Return what is read at a time."""
        many = max(1, _BYTES * len(self.x) // max(1, self.x.nbytes))
        for start in range(0, self.shape[0], many):
            yield {"start": start, "stop": min(start + many, self.shape[0])}

    def read(self, task: dict[str, Any], put: Put) -> dict[str, Any]:
        """Lay the examples of a task out."""
        from PIL import Image

        some = self.x[task["start"] : task["stop"]]
        if self.size is None:
            with np.errstate(over="ignore"):  # what is no longer finite is refused later
                put(task["start"], np.ascontiguousarray(some, self.dtype))
            return {}
        for i, pixels in enumerate(some, task["start"]):
            image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
            put(i, pixels_of(image, self.size)[None])
        return {}

    def heard(self, task: dict[str, Any], report: dict[str, Any]) -> None:
        """Take note of nothing."""

    def notes(self) -> list[str]:
        """Return nothing to say."""
        return []
