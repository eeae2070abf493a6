"""`kaem sample RUN`: new data points, in one pass."""

import argparse
import math
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import seed
from .progress import say

_MAX_GIGABYTES = 4


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder or a .safetensors model")
    parser.add_argument("-n", type=int, default=64, metavar="N", help="how many (default 64)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N")
    parser.add_argument(
        "--noise", action="store_true", help="draw from p(x): add the observation noise to G(z)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help=".png sheet or .npz arrays (default samples.png, or samples.npz of what is no image)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> dict[str, Any]:
    output = Path(options.output) if options.output else None
    if options.n < 1:
        raise UserError(f"-n must be at least 1, got {options.n}.")
    if output and output.suffix not in (".png", ".npz"):
        raise UserError(f"-o takes a .png or .npz file, got {output}.")

    import io

    import equinox as eqx
    import jax
    import numpy as np

    from ..data.sheets import MAX_PIXELS, is_image, sample_sheet, save_png, sheet_capacity
    from ..files import write_atomically
    from ..model import LatentModel
    from ..serialisation import load

    model = load(options.run)
    images = is_image(model.data_shape)
    output = output or Path("samples.png" if images else "samples.npz")
    gigabytes = options.n * math.prod(model.data_shape) * 4 / 1e9
    if gigabytes > _MAX_GIGABYTES:
        raise UserError(
            f"{options.n} samples would take {gigabytes:.0f} GB of memory; draw at most "
            f"{_MAX_GIGABYTES} GB at a time, with a different --seed for each file."
        )
    sheet = output.suffix == ".png"
    if sheet and not images:
        raise UserError(
            f"the model makes data of shape {model.data_shape}, not images; use -o FILE.npz."
        )
    if sheet and options.n > (most := sheet_capacity(model.data_shape)):
        raise UserError(
            f"a sheet of {options.n} images is too large to be looked at, expected at most {most} of "
            f"shape {model.data_shape}, {MAX_PIXELS / 1e6:.0f} million pixels; use -o FILE.npz."
        )
    if options.noise and not isinstance(model, LatentModel):
        raise UserError(
            f"a {type(model).__name__} has no observation noise that could be added: its samples are "
            "draws from p(x) as they are; leave --noise out."
        )
    draw = eqx.filter_jit(
        lambda model, key, n: (model.sample_with_noise if options.noise else model.sample)(key, n)
    )
    chunk = min(options.n, 1000)
    keys = jax.random.split(jax.random.key(options.seed), -(-options.n // chunk))
    x = np.concatenate([np.asarray(draw(model, key, chunk)) for key in keys])[: options.n]
    if not np.isfinite(x).all():
        raise UserError(
            f"what {options.run} draws is not finite: its parameters are too large to compute with, or "
            "damaged. Nothing was written; train it again with lower rates, or restore the file."
        )
    if options.noise and model.output == "sigmoid":
        outside = np.mean((x < 0) | (x > 1))
        fate = "clipped in the sheet; -o FILE.npz keeps them" if sheet else "left as they are"
        say(f"note: {outside:.1%} of the numbers lie outside [0, 1] with noise, and are {fate}")
    if sheet:
        save_png(output, sample_sheet(x))
    else:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, x=x)
        write_atomically(output, buffer.getvalue())
    if not options.json:
        print(f"wrote {options.n} samples to {output}")
    return {
        "output": str(output),
        "n": options.n,
        "shape": list(x.shape),
        "seed": options.seed,
        "noise": options.noise,
    }
