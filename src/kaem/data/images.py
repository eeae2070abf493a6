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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

import numpy as np

from ..errors import UserError
from .archives import DAMAGE, check_ratio, open_zip, unpacked
from .arrays import Split

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# Whatever a file is called: of others, such as EPS, Pillow would start programs that it finds.
_FORMATS = ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"]
KINDS = {1: "grey", 3: "RGB"}

# The dataset's own partition (list_eval_partition.txt); 162771 to 182637 are for validation.
CELEBA = {"train": range(1, 162_771), "test": range(182_638, 202_600)}
CELEBA_CROP, CELEBA_SIZE = 148, 64

_MAX_GIGABYTES = 16
_MAX_SIZE = 2**14  # pixels to a side; one image has 800 MB then
# More than these is damage, or meant to exhaust memory: bytes of an image's file, pixels of an image,
# pixels of those that are decoded at the same time, bytes of what a zip file says that it holds.
_MAX_FILE, _MAX_PIXELS, _MAX_TOGETHER, _MAX_DIRECTORY = 2**28, 2**26, 2**24, 3 * 2**23
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

    `say` is told what was done to images that nobody asked for.
    """

    size: int | None = None
    channels: int | None = None
    limit: int | None = None
    mixed: bool = False
    say: Callable[[str], None] = lambda _: None

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
    if path.is_dir():
        tops = ((os.path.relpath(top, path), files) for top, _, files in os.walk(path))
        names = (os.path.join(top, file) for top, files in tops for file in files)
        plain = (name.replace(os.sep, "/").removeprefix("./") for name in names)
        found = [name for name in image_names(plain) if (path / name).is_file()]  # no pipes
        yield found, lambda name: _whole(path / name)
        return
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(open_zip(path, _MAX_DIRECTORY))
        except DAMAGE as error:
            raise UserError(
                f"{path} is not a readable zip file ({error}); it is truncated, damaged or another "
                "format. Get it again, or point to a folder of images."
            ) from error
        yield (
            image_names(archive.namelist()),
            lambda name: unpacked(archive, archive.getinfo(name), _MAX_FILE),
        )


def _whole(path: Path) -> bytes:
    """Return the content of an image's file."""
    if (size := path.stat().st_size) > _MAX_FILE:
        raise ValueError(f"it has {size / 1e6:,.0f} MB, expected at most {_MAX_FILE / 1e6:,.0f}")
    return path.read_bytes()


def read_images(path: Path, options: Options) -> np.ndarray:
    """Read every image below a folder or in a zip file, in name order, without unpacking it."""
    with image_files(path) as (names, content):
        if not names:
            raise UserError(
                f"{path} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}); point to the folder "
                "or zip file that does, or to a .npy or .npz file."
            )
        return _read(path, names, content, options)


def read_celeba(path: Path, split: Split, options: Options) -> np.ndarray:
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
        return _read(path, names, content, options, CELEBA_CROP)


def fitted(x: np.ndarray, source: str, options: Options) -> np.ndarray:
    """Return `x` with the size and the channels that were asked for, or raise, saying why not."""
    size, image = options.size, x.ndim == 4
    if options.channels is not None:
        if not image:
            raise UserError(
                f"{source} holds examples of shape {x.shape[1:]}, which are no images, so it has no "
                f"{options.channels} channels; leave data.channels out (`--set data.channels=none`)."
            )
        _require_channels(x.shape[3], options.channels, source)
    if size is None or (image and x.shape[1:3] == (size, size)):
        return x
    if not image or x.dtype != np.uint8 or x.shape[3] not in KINDS:
        raise UserError(
            f"{source} holds {x.dtype} examples of shape {x.shape[1:]}; only uint8 images, grey or "
            f"RGB, are resized to data.size={size}. Resize it yourself, or leave data.size out "
            "(`--set data.size=none`)."
        )
    from PIL import Image

    shape = (len(x), size, size, x.shape[3])
    _check_memory(source, shape)

    def resized(i: int) -> np.ndarray:
        image = Image.fromarray(x[i, ..., 0] if x.shape[3] == 1 else x[i])
        return _pixels(image, size)

    return _filled(shape, resized)


def _quiet(read: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Keep Pillow's warnings back: what is wrong is refused here, and what is converted is said."""

    @wraps(read)
    def quiet(*arguments: Any) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(*arguments)

    return quiet


@_quiet
def _read(
    path: Path,
    names: list[str],
    content: Callable[[str], bytes],
    options: Options,
    crop: int | None = None,
) -> np.ndarray:
    """Decode `names`, which must share their channels and, unless they are resized, their size."""
    from PIL import Image, ImageOps

    names = names[: options.limit]
    noticed: set[tuple[str, int]] = set()
    alone, sizes = Lock(), np.zeros(2, int)  # of all files so far, and of their pixels

    def decoded(i: int) -> tuple[tuple[int, int], np.ndarray]:
        try:
            data = content(names[i])
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                area = math.prod(image.size)
                if not 0 < area <= _MAX_PIXELS:
                    raise ValueError(
                        f"it has {image.width} x {image.height} pixels, expected 1 to {_MAX_PIXELS:,}"
                    )
                with alone if area > _MAX_TOGETHER else nullcontext():
                    noticed.update((w, i) for w, applies in _CONVERTED.items() if applies(image))
                    upright = ImageOps.exif_transpose(image) if _turned(image) else image
                    pixels = _pixels(_eight_bit(upright), options.size, crop)
            if options.size is None:  # what is resized is as large as was asked for
                sizes[:] += len(data), pixels.nbytes
                check_ratio(int(sizes[0]), int(sizes[1]), _ALWAYS)
            return upright.size, pixels
        except Exception as error:  # what Pillow raises depends on the format and the damage
            reason = re.sub("<_io.*>", "its content", str(error))[:300]
            raise UserError(
                f"{path / names[i][:300]} cannot be read as an image ({reason}). Remove or repair it; "
                f"{i} files before it were fine."
            ) from error

    extent, first = decoded(0)
    _require_channels(first.shape[2], options.channels, f"{path} (see {names[0][:300]})")
    _check_memory(str(path), (len(names), *first.shape))

    resized = (
        f"are not {extent[0]} x {extent[1]} pixels like {names[0][:300]}: all are cropped to squares and "
        f"resized to {options.size} x {options.size}"
    )

    def alike(i: int) -> np.ndarray:
        size, pixels = decoded(i)
        if size != extent and not options.size:
            raise UserError(
                f"{path / names[i][:300]} is {size[0]} x {size[1]} pixels, but {path / names[0][:300]} is "
                f"{extent[0]} x {extent[1]}; images of a data set must have one size. If they belong "
                "together, `--set data.size=N` crops and resizes each to a square."
            )
        if size != extent and not options.mixed:
            noticed.add((resized, i))
        if pixels.shape[2] != first.shape[2]:
            raise UserError(
                f"{path / names[i][:300]} is {KINDS[pixels.shape[2]]}, but {path / names[0][:300]} is "
                f"{KINDS[first.shape[2]]}; images of a data set must all be grey or all be RGB. "
                "Convert or remove one kind."
            )
        return pixels

    x = _filled((len(names), *first.shape), alike)
    for what, count in sorted(Counter(what for what, _ in noticed).items()):
        options.say(f"note: {count} of {len(names)} images of {path} {what}")
    return x


def _eight_bit(image: Any) -> Any:
    """Grey or RGB, 8 bits a channel; transparency is dropped."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # 16 bits; Pillow's own conversion would clip at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError("its pixels have 32 bits and no known range: save it with 8, or as .npy")
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def _pixels(image: Any, size: int | None, crop: int | None = None) -> np.ndarray:
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


def _filled(shape: tuple[int, ...], example: Callable[[int], np.ndarray]) -> np.ndarray:
    """uint8 examples, in threads (Pillow works without the GIL), straight to where they belong."""
    x = np.empty(shape, np.uint8)
    step = 64  # a task for each of 160,000 images would take more memory than time it saves

    def fill(start: int) -> None:
        for i in range(start, min(start + step, len(x))):
            x[i] = example(i)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for _ in pool.map(fill, range(0, len(x), step)):
            pass  # in order, so the first bad image is the one that is named
    return x


def _check_memory(source: str, shape: tuple[int, ...]) -> None:
    """Raise if so many bytes of images are too many."""
    if (gigabytes := math.prod(shape) / 1e9) > _MAX_GIGABYTES:
        raise UserError(
            f"{source} holds {shape[0]} images of shape {shape[1:]}, {gigabytes:.0f} GB in memory; "
            "make them smaller with `--set data.size=N`, or take fewer with `--set data.limit=N`."
        )


def _require_channels(got: int, wanted: int | None, source: str) -> None:
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
