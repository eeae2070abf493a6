"""Images, of a folder or a zip file, as uint8 [N, H, W, C]; and the checks that all data passes.

An image is cropped to its central square before it is resized, so nothing is distorted. Resizing
uses Lanczos: like every filter of Pillow it averages over all pixels that a new one covers, so
fine patterns do not alias, and it is the sharpest; a box filter would only repeat pixels where an
image is enlarged.
"""

import io
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, ParamSpec
from zipfile import ZipFile

import numpy as np

from ..errors import UserError
from .archives import DAMAGE, check_ratio, open_zip, unpacked
from .arrays import Split
from .decoding import Put, decoded
from .rows import Examples

P = ParamSpec("P")
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# Whatever a file is called: of others, such as EPS, Pillow would start programs that it finds.
_FORMATS = ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"]
KINDS = {1: "grey", 3: "RGB"}

# The dataset's own partition (list_eval_partition.txt); 162771 to 182637 are for validation.
CELEBA = {"train": range(1, 162_771), "test": range(182_638, 202_600)}
CELEBA_CROP, CELEBA_SIZE = 148, 64

_MAX_SIZE = 2**14  # pixels to a side; one image has 800 MB then
# More than these is damage, or meant to exhaust memory: bytes of an image's file, pixels of an image,
# pixels of those that are decoded at the same time, bytes of what a zip file says that it holds.
_MAX_FILE, _MAX_PIXELS, _MAX_TOGETHER, _MAX_DIRECTORY = 2**28, 2**26, 2**24, 3 * 2**23
_TOGETHER = 64  # images that are read at a time
_ALWAYS = 2**30  # bytes that images may fill, however small their files are


# What an image is, in Pillow's words, and what is said of those that are.
_CONVERTED: dict[str, Callable[[Any], bool]] = {
    "have several frames, of an animation or pages: only the first is used": (
        lambda image: getattr(image, "is_animated", False)
    ),
    "are CMYK: they are converted to RGB, whatever their colour profile": (
        lambda image: image.mode == "CMYK"
    ),
    # Pillow decodes RGB of 16 bits to 8; only the decoder's arguments tell.
    "have 16 bits a channel: they are scaled to 8": (
        lambda image: re.search(r"I;16|;16[BLN]", f"{image.mode} {image.tile}") is not None
    ),
    "say by EXIF that they lie on their side: they are turned upright": lambda i: _turned(i),
}


def _turned(image: Any) -> bool:
    """Whether a camera recorded that it was held another way than the pixels lie."""
    return image.getexif().get(0x0112, 1) in range(2, 9)


@dataclass(frozen=True)
class Options:
    """What is asked of the data: `data.size`, `data.channels`, `data.limit` and `data.mixed`.

    `say` is told what was done to images that nobody asked for. What would fill more than `memory`
    bytes stays on disk; None keeps everything in memory.
    """

    size: int | None = None
    channels: int | None = None
    limit: int | None = None
    mixed: bool = False
    say: Callable[[str], None] = lambda _: None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"data.{name} must be at least 1, or none, got {value}.")
        if self.size is not None and self.size > _MAX_SIZE:
            raise UserError(f"data.size must be at most {_MAX_SIZE} pixels, got {self.size}.")
        if self.channels not in (None, 1, 3):
            raise UserError(
                f"data.channels must be 1 (grey), 3 (RGB) or none, got {self.channels}."
            )


def image_names(names: Iterable[str]) -> list[str]:
    """Return the images among relative paths, in name order, without macOS's `._` shadows."""

    def is_image(name: str) -> bool:
        base = name.rpartition("/")[2]
        return os.path.splitext(base)[1].lower() in IMAGE_SUFFIXES and not base.startswith("._")

    return sorted(filter(is_image, names), key=lambda name: name.split("/"))


@contextmanager
def image_files(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """Yield the names of the images below a folder or in a zip file, and what reads one of them."""
    with _opened(path) as (archive, content):
        if archive is not None:
            yield image_names(archive.namelist()), content
            return
        tops = ((os.path.relpath(top, path), files) for top, _, files in os.walk(path))
        names = (os.path.join(top, file) for top, files in tops for file in files)
        plain = (name.replace(os.sep, "/").removeprefix("./") for name in names)
        found = [name for name in image_names(plain) if (path / name).is_file()]  # no pipes
        yield found, content


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ZipFile | None, Callable[[str], bytes]]]:
    """Yield a zip file, or None for a folder, and what reads one of its files by name."""
    if path.is_dir():
        yield None, lambda name: _whole(path / name)
        return
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(open_zip(path, _MAX_DIRECTORY))
        except DAMAGE as error:
            raise UserError(
                f"{path} is not a readable zip file ({error}); it is truncated, damaged or another "
                "format. Get it again, or point to a folder of images."
            ) from error
        yield archive, lambda name: unpacked(archive, archive.getinfo(name), _MAX_FILE)


def _whole(path: Path) -> bytes:
    """Return the content of an image's file."""
    if (size := path.stat().st_size) > _MAX_FILE:
        raise ValueError(f"it has {size / 1e6:,.0f} MB, expected at most {_MAX_FILE / 1e6:,.0f}")
    return path.read_bytes()


def _quiet(read: Callable[P, Examples]) -> Callable[P, Examples]:
    """Keep Pillow's warnings back: what is wrong is refused here, and what is converted is said."""

    @wraps(read)
    def quiet(*arguments: P.args, **named: P.kwargs) -> Examples:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(*arguments, **named)

    return quiet


@_quiet
def read_images(path: Path, options: Options) -> Examples:
    """Read every image below a folder or in a zip file, in name order, without unpacking it."""
    with image_files(path) as (names, content):
        if not names:
            raise UserError(
                f"{path} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}); point to the folder "
                "or zip file that does, or to a .npy or .npz file."
            )
        return decoded(Images(path, names, content, options), options.memory, options.say)


@_quiet
def read_celeba(path: Path, split: Split, options: Options) -> Examples:
    """Read one split of img_align_celeba[.zip]: the central 148 x 148 pixels, resized to 64 x 64."""
    numbers = CELEBA[split]
    wanted = {f"{number:06}" for number in numbers}
    with image_files(path) as (names, content):
        names = [name for name in names if PurePosixPath(name).stem in wanted]
        if not names:
            raise UserError(
                f"{path} holds none of CelebA's {split} images, {numbers[0]:06}.jpg to "
                f"{numbers[-1]:06}.jpg; it is incomplete, or something else of that name: rename it "
                "to have it read as it is."
            )
        options = replace(options, size=options.size or CELEBA_SIZE)
        images = Images(path, names, content, options, CELEBA_CROP)
        return decoded(images, options.memory, options.say)


@dataclass
class Seen:
    """What was noticed of images, and the bytes of their files and of their pixels."""

    noticed: Counter[str] = field(default_factory=Counter)
    packed: int = 0
    pixels: int = 0

    def count(self, packed: int, pixels: int) -> None:
        """Add an image, or several; raise if few bytes have become absurdly many."""
        self.packed, self.pixels = self.packed + packed, self.pixels + pixels
        check_ratio(self.packed, self.pixels, _ALWAYS)

    def report(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {"noticed": dict(self.noticed), "packed": self.packed, "pixels": self.pixels}


class Images:
    """Images of a folder or zip file, which must share their channels and, unless they are resized, their size.

    `first` is what the first one is like: its name, its extent and its channels.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        path: Path,
        names: list[str],
        content: Callable[[str], bytes],
        options: Options,
        crop: int | None = None,
        first: tuple[str, tuple[int, int], int] | None = None,
        alone: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.path, self.content, self.options, self.crop = path, content, options, crop
        self.names = names[: options.limit]
        self.alone = alone or Lock()  # large ones are decoded one at a time
        self._so_far, self._heard = Seen(), Seen()
        if first is None:
            extent, pixels = self._decoded(self.names[0], 0, Seen(), content)
            self._so_far = Seen()  # it is read again
            shown = f"{path} (see {self.names[0][:300]})"
            require_channels(pixels.shape[2], options.channels, shown)
            first = self.names[0], extent, pixels.shape[2]
            self.shape = (len(self.names), *pixels.shape)
        self.first = first

    @property
    def what(self) -> str:
        return f"{self.shape[0]:,} images of {self.path}"

    def made_of(self) -> Iterator[Any]:
        """Return what the pixels are a function of: what to do with which files, and when those were written."""
        from PIL import __version__

        yield self.recipe(), str(self.path.resolve()), __version__
        places = [self.path / name for name in self.names] if self.path.is_dir() else [self.path]
        yield from self.names
        for place in places:
            found = place.stat()
            yield found.st_size, found.st_mtime_ns

    def recipe(self) -> dict[str, Any]:
        """Return how another process makes the same."""
        options = {"size": self.options.size, "mixed": self.options.mixed}
        made = {"path": str(self.path), "options": options, "crop": self.crop, "first": self.first}
        return {"kind": "images"} | made

    @classmethod
    @contextmanager
    def made(cls, recipe: dict[str, Any], alone: Any) -> "Iterator[Images]":
        """Yield what a recipe describes, in another process."""
        path, (name, extent, channels) = Path(recipe["path"]), recipe["first"]
        first = (name, tuple(extent), channels)
        with _opened(path) as (_, content):
            yield cls(path, [], content, Options(**recipe["options"]), recipe["crop"], first, alone)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Return what is read at a time; a task for each image would take longer than it."""
        for start in range(0, len(self.names), _TOGETHER):
            yield {"start": start, "names": self.names[start : start + _TOGETHER]}

    def read(self, task: dict[str, Any], put: Put) -> dict[str, Any]:
        """Decode the images of a task, and return what was noticed."""
        seen = Seen()
        for i, name in enumerate(task["names"], task["start"]):
            put(i, self.alike(name, i, seen, self.content)[None])
        return seen.report()

    def heard(self, task: dict[str, Any], report: dict[str, Any]) -> None:
        """Take note of what reading a task, here or elsewhere, noticed."""
        self._heard.noticed.update(report["noticed"])
        try:
            self._heard.count(report["packed"], report["pixels"])
        except ValueError as error:
            last = task["start"] + len(task["names"]) - 1
            raise self._unreadable(task["names"][-1], last, error) from error

    def notes(self) -> list[str]:
        """Return what was done to images that nobody asked for."""
        of = f"of {self.shape[0]} images of {self.path}"
        return [f"note: {count} {of} {what}" for what, count in sorted(self._heard.noticed.items())]

    def _decoded(
        self, name: str, i: int, seen: Seen, content: Callable[[str], bytes]
    ) -> tuple[tuple[int, int], np.ndarray]:
        from PIL import Image, ImageOps

        try:
            data = content(name)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                area = math.prod(image.size)
                if not 0 < area <= _MAX_PIXELS:
                    raise ValueError(
                        f"it has {image.width} x {image.height} pixels, expected 1 to {_MAX_PIXELS:,}"
                    )
                with self.alone if area > _MAX_TOGETHER else nullcontext():
                    seen.noticed.update(
                        what for what, applies in _CONVERTED.items() if applies(image)
                    )
                    upright = ImageOps.exif_transpose(image) if _turned(image) else image
                    pixels = pixels_of(_eight_bit(upright), self.options.size, self.crop)
            if self.options.size is None:  # what is resized is as large as was asked for
                seen.count(len(data), pixels.nbytes)
                self._so_far.count(len(data), pixels.nbytes)
            return upright.size, pixels
        except Exception as error:  # what Pillow raises depends on the format and the damage
            raise self._unreadable(name, i, error) from error

    def _unreadable(self, name: str, i: int, error: Exception) -> UserError:
        reason = re.sub("<_io.*>", "its content", str(error))[:300]
        return UserError(
            f"{self.path / name[:300]} cannot be read as an image ({reason}). Remove or repair it; "
            f"{i} files before it were fine."
        )

    def alike(self, name: str, i: int, seen: Seen, content: Callable[[str], bytes]) -> np.ndarray:
        """Return the pixels of image `i`, if it belongs to the first one."""
        (first, extent, channels), options = self.first, self.options
        size, pixels = self._decoded(name, i, seen, content)
        if size != extent and not options.size:
            raise UserError(
                f"{self.path / name[:300]} is {size[0]} x {size[1]} pixels, but {self.path / first[:300]} is "
                f"{extent[0]} x {extent[1]}; images of a data set must have one size. If they belong "
                "together, `--set data.size=N` crops and resizes each to a square."
            )
        if size != extent and not options.mixed:
            seen.noticed[
                f"are not {extent[0]} x {extent[1]} pixels like {first[:300]}: all are cropped to squares "
                f"and resized to {options.size} x {options.size}"
            ] += 1
        if pixels.shape[2] != channels:
            raise UserError(
                f"{self.path / name[:300]} is {KINDS[pixels.shape[2]]}, but {self.path / first[:300]} is "
                f"{KINDS[channels]}; images of a data set must all be grey or all be RGB. "
                "Convert or remove one kind."
            )
        return pixels


def _eight_bit(image: Any) -> Any:
    """Grey or RGB, 8 bits a channel; transparency is dropped."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # 16 bits; Pillow's own conversion would clip at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError("its pixels have 32 bits and no known range: save it with 8, or as .npy")
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def pixels_of(image: Any, size: int | None, crop: int | None = None) -> np.ndarray:
    """Of a Pillow image, the central square (at most `crop` wide) at `size`; all of it if None."""
    from PIL import Image

    if size is not None:
        side = min(*image.size, crop or min(image.size))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        # Not `resize(box=...)`, which lets in some of what is around the box.
        image = image.crop((left, top, left + side, top + side))
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def require_channels(got: int, wanted: int | None, source: str) -> None:
    if wanted is None or got == wanted:
        return
    if got in KINDS:
        raise UserError(
            f"{source} holds {KINDS[got]} images, but data.channels={wanted} asks for "
            f"{KINDS[wanted]}: `--set data.channels={got}` trains a model of {KINDS[got]} images, or "
            f"convert the images to {KINDS[wanted]}."
        )
    raise UserError(
        f"{source} holds images of {got} channels, but data.channels={wanted} asks for "
        f"{KINDS[wanted]}; arrays are [N, height, width, channels], so transpose them if theirs "
        "come first, keep the channels that you mean, or leave data.channels out "
        "(`--set data.channels=none`)."
    )
