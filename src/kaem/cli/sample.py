"""`kaem sample RUN`: new data points, in one pass."""

import argparse
from typing import Any

from .options import FLAG, MODEL, NUMBER, OUTPUT, SEED
from .progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", **MODEL)
    add("-n", **NUMBER, default=64, help="how many (default 64)")
    add("--seed", **SEED)
    add("--noise", **FLAG, help="draw from p(x): add the observation noise to G(z)")
    usual = "default samples.png, or samples.npz of what is no image"
    add(*OUTPUT, metavar="FILE", help=f".png sheet or .npz arrays ({usual})")


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..data.sheets import is_image
    from ..loading import load
    from ..runs.sampling import check_request, sample

    check_request(options.n, options.output)
    model = load(options.run)
    output = options.output or ("samples.png" if is_image(model.data_shape) else "samples.npz")
    drawn = {"n": options.n, "seed": options.seed, "noise": options.noise}
    x = sample(model, **drawn, output=output, say=say)
    if not options.json:
        print(f"wrote {options.n} samples to {output}")
    return {"output": output, "shape": list(x.shape), **drawn}
