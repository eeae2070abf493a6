"""How samples changed while a run trained: its sample sheets as one animation."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import write_atomically
from ._figure import Figure

_SIDE = 480  # pixels: for a page, and small enough to send
_FRAMES = 40  # more are thinned out evenly: files stay small
_BAND, _FONT = 24, 15  # the caption's height and type size, in pixels
_LEVELS = 64  # colours of a GIF frame


def evolution(samples: Path, output: Path, seconds: float = 0.5, hold: float = 2.5) -> list[int]:
    """Write `samples`/STEP.png as one GIF or WebP, by the suffix of `output`; returns the steps shown.

    Frames follow in order of their steps, `seconds` each; the last stays for `hold`.
    """
    from PIL import features

    if output.suffix not in (".gif", ".webp"):
        raise UserError(f"animations are written as .gif or .webp, got {output}.")
    if output.suffix == ".webp" and not features.check("webp"):
        raise UserError("this Pillow was built without WebP; write a .gif instead.")
    if min(seconds, hold) < 0.02:
        raise UserError(f"frames last at least 0.02 seconds, got {seconds} and {hold}.")
    files = {int(path.stem): path for path in samples.glob("*.png") if path.stem.isdecimal()}
    if not files:
        raise UserError(
            f"there are no sample sheets STEP.png in {samples}; runs on images write them every "
            "`training.sample_every` updates."
        )
    steps = sorted(files)
    if len(steps) > _FRAMES:
        steps = [steps[round(i)] for i in np.linspace(0, len(steps) - 1, _FRAMES)]
    first = _open(files[steps[0]])
    scale = min(1.0, _SIDE / max(first.size))
    size = (round(first.width * scale), round(first.height * scale))
    frames = [_captioned(_open(files[step]), size, f"update {step:,}") for step in steps]

    milliseconds = [round(1000 * seconds)] * (len(frames) - 1) + [round(1000 * hold)]
    options: dict[str, Any] = {"save_all": True, "duration": milliseconds, "loop": 0}
    if output.suffix == ".gif":
        # Without dithering, whose noise does not compress.
        frames = [frame.quantize(_LEVELS, dither=0) for frame in frames]
        options |= {"optimize": True}
    else:
        options |= {"quality": 70, "method": 4}
    buffer = io.BytesIO()
    frames[0].save(buffer, output.suffix[1:], append_images=frames[1:], **options)
    write_atomically(output, buffer.getvalue())
    return steps


def _open(path: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow's readers raise many kinds
        raise UserError(
            f"{path} is not a readable PNG ({error}). Remove it to make the animation without it."
        ) from error


def _captioned(image: Any, size: tuple[int, int], caption: str) -> Any:
    """Return the image at `size`, over a band with the caption, which thus covers no sample."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    frame = Image.new("RGB", (size[0], size[1] + _BAND), "white")
    frame.paste(image.resize(size, Image.Resampling.BOX), (0, 0))
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), _FONT)
    place = (size[0] / 2, size[1] + _BAND / 2)
    ImageDraw.Draw(frame).text(place, caption, fill="black", font=font, anchor="mm")
    return frame


EVOLUTION = Figure(
    about="the sample sheets of training as an animation",
    draw=lambda gallery, path: evolution(gallery.run.samples, path),
    formats=("gif", "webp"),
)
