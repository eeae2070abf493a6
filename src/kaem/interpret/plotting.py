"""Draw figures of a run: what `kaem plot` does."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from ..data.arrays import Split
from ..errors import UserError
from ..runs.folder import RunFolder
from .curves import Place
from .figures import FIGURES, OPTIONS
from .gallery import Gallery

_LIMITS = {"count": (1, 1000), "points": (2, 100)}
BETWEEN = ("samples", "data", "modes")


def plot(
    run: RunFolder | str | PathLike[str],
    figures: str | Sequence[str] = "all",
    *,
    folder: Path | None = None,
    format: str | None = None,
    count: int | None = None,
    points: int | None = None,
    latents: Sequence[Place] = (),
    between: str = "samples",
    examples: Sequence[int] = (),
    data: str | None = None,
    split: Split = "train",
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw figures of a run, and return their files.

    **Arguments:** `figures` are names of `FIGURES`, or "all" for those that the run has; the others
    are then told to `say`. `folder` is the run's own by default, `format` what each figure usually
    is, `count` the number of coordinates or examples, `points` that of images in a strip or on a
    path. `latents` are places to show instead of the most influential, counted from zero. `between`
    says what the ends of an interpolation are: samples, data or modes. `examples` are rows of the
    data, which are those of `split` of the run's own or of `data`. `seed` is that of draws and chains.
    """
    run = RunFolder.open(run)
    everything = figures in ("all", ["all"])
    names = list(FIGURES) if everything else list(dict.fromkeys(_listed(figures)))
    unknown = [name for name in names if name not in FIGURES]
    if unknown or not names:
        problem = f"unknown figure {unknown[0]!r}" if unknown else "no figure was named"
        raise UserError(f"{problem}; choose from {', '.join(FIGURES)}, or all.")
    places = tuple(dict.fromkeys(latents))
    gallery = Gallery(run, seed, data, split, count, points, places, between, tuple(examples))
    values = (count, points, places, between != "samples", examples, data, split != "train")
    _check(names, gallery, [option for option, v in zip(OPTIONS, values, strict=True) if v])
    suffixes = _suffixes(names, format)
    if folder is None:
        run.check_folders()
    written = []
    for name in names:
        path = (folder or run.figures) / f"{name}.{suffixes[name]}"
        try:
            FIGURES[name].write(gallery, path)
        except UserError as error:
            if not everything:
                raise
            say(f"no {name}: {error}")
            continue
        written.append(path)
    return written


def _listed(figures: str | Sequence[str]) -> list[str]:
    """Return names that may also stand in one text, with commas between them."""
    texts = [figures] if isinstance(figures, str) else figures
    return [name for text in texts for name in text.split(",") if name]


def _check(names: list[str], gallery: Gallery, given: list[str]) -> None:
    """Raise unless numbers are within bounds, and some figure heeds every option that was `given`."""
    for name, (least, most) in _LIMITS.items():
        value = getattr(gallery, name)
        if value is not None and not least <= value <= most:
            raise UserError(f"--{name} must be at least {least} and at most {most}, got {value}.")
    if gallery.between not in BETWEEN:
        raise UserError(f"--between is one of {', '.join(BETWEEN)}, got {gallery.between!r}.")
    for option in given:
        if not any(option in FIGURES[name].options for name in names):
            fitting = [name for name, figure in FIGURES.items() if option in figure.options]
            raise UserError(
                f"--{option} is for {', '.join(fitting)}; it would change nothing about "
                f"{', '.join(names)}."
            )
    heeding = [FIGURES[name].options for name in names if "example" in FIGURES[name].options]
    if gallery.examples and gallery.between != "data" and all("between" in o for o in heeding):
        raise UserError(
            "--example is an end of an interpolation only with --between data; add that."
        )


def _suffixes(names: list[str], wanted: str | None) -> dict[str, str]:
    """Return the format of each figure: the one `wanted` where it has that."""
    formats = {name: FIGURES[name].formats for name in names}
    if wanted is not None and not any(wanted in own for own in formats.values()):
        theirs = "; ".join(f"{name} is {' or '.join(own)}" for name, own in formats.items())
        raise UserError(f"--format {wanted} is not for {', '.join(names)}: {theirs}.")
    return {n: wanted if wanted and wanted in own else own[0] for n, own in formats.items()}
