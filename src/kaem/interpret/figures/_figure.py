"""What a figure declares of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...files import write_atomically
from ..gallery import Gallery

OPTIONS = ("count", "points", "latent", "between", "example", "data", "split")
PRIOR = "What the prior learned"


@dataclass(frozen=True)
class Figure:
    """A picture of a run: how it is drawn, and all that `kaem plot` and the report say of it."""

    about: str  # what `kaem plot --help` says
    draw: Callable[[Gallery, Path], Any]  # writes the file; returns what it shows
    options: tuple[str, ...] = ()  # of `OPTIONS`, those that change it
    formats: tuple[str, ...] = ("png", "svg")  # suffixes of its file, the usual one first
    caption: str | None = None  # in the report; None is left out of it
    section: str = ""  # the heading above it in the report
    belongs: Callable[[Gallery], bool] = lambda _: True  # whether a report of this run has it
    wide: bool = True  # whether it keeps its size, and scrolls, on a narrow screen

    def __post_init__(self) -> None:
        unknown = set(self.options) - set(OPTIONS)
        if unknown or not self.formats:
            raise ValueError(
                f"a figure has options of {', '.join(OPTIONS)} and at least one format, got options "
                f"{', '.join(self.options) or 'none'} and formats {', '.join(self.formats) or 'none'}."
            )

    def write(self, gallery: Gallery, path: Path) -> None:
        """Draw it into a file that is whole or absent, and whose folder need not be there yet."""
        with TemporaryDirectory() as folder:
            drawn = Path(folder) / path.name
            self.draw(gallery, drawn)
            write_atomically(path, drawn.read_bytes())
