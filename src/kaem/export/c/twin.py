r"""The model in C99 and floating point: exact inverse CDFs and the generator itself, with `math.h` alone.

The prior is the rational-quadratic table of `kaem.priors.inverse_transform`, searched by bisection; with
$y = (u - F_k)/\Delta$ in the cell of $u$, $\xi$ is the smaller root of $a\xi^2 + b\xi - y = 0$. Nothing is quantised, so this
twin shows what integers cost, and suits machines that have a floating-point unit.
"""

import math
from string import Template
from typing import Any

import numpy as np

from ...models import KAEM
from ..integer.layers import by
from ..text import array, fill
from .interface import header, sampling
from .twin_layers import GENERATORS, unwritten

BITS = 23  # of a draw: with half of the last one added, a float32 still has them all

_ABOUT = Template("""\
in floating point; needs math.h.
 *
 * ${latents} quantiles in [0, 1] become ${size} numbers of shape ${shape}. All functions are reentrant
 * and use the stack alone.""")


_SIGMOID = Template("""\
    for (int i = 0; i < ${guard}_SIZE; i++)
        image[i] = 1.0f / (1.0f + expf(-image[i]));
""")


def missing(model: KAEM) -> str | None:
    """Return why a model has no twin, or None if it has one."""
    what = unwritten(model.generator)
    if what is None:
        return None
    return f"in integers alone, without a twin in floating point: there is no C for {what}."


def interface(model: KAEM, name: str) -> dict[str, Any]:
    """Return what the header, the functions that draw, and the test bench say of a model."""
    values = {
        "latents": math.prod(model.prior.shape),
        "size": math.prod(model.data_shape),
        "shape": by(model.data_shape),
    }
    return values | {
        "name": name,
        "prefix": f"{name}_float",
        "guard": f"{name.upper()}_FLOAT",
        "number": "float",
        "pixel": "float",
        "latent": "z",
        "range": "",
        "about": _ABOUT.substitute(values),
        "to_latents": "Quantiles to latents, by exact inverse CDFs",
        "of_seeds": f"A seed to quantiles, never 0 or 1, and to data: the draws of {name}.h with 23 bits of each",
        "draw": " /* exact in 24 bits */\n"
        f"        u[i] = ((float)({name}_float_draw(stream) >> 9) + 0.5f) / 8388608.0f;",
    }


def files(model: KAEM, name: str) -> dict[str, str]:
    """Return `NAME_float.h` and `NAME_float.c`."""
    generator: Any = model.generator
    table, values = model.prior.table, interface(model, name)
    latents, coordinates = values["latents"], model.prior.shape[0]
    flat = {
        field: np.asarray(getattr(table, field), np.float32).reshape(latents, -1)
        for field in ("knots", "density", "lo", "hi")
    }
    layers, sizes = GENERATORS[type(generator)](generator, name)
    to = [f"x_{i}" for i in range(1, len(sizes))] + ["image"]
    calls = "".join(f"    {name}_layer_{i + 1}(x_{i}, {y});\n" for i, y in enumerate(to))
    text = fill(
        __file__,
        "twin.c",
        values,
        cells=table.cells,
        tables="".join(
            array(f"{name}_{field}", rows if rows.shape[1] > 1 else rows[:, 0], "float")
            for field, rows in flat.items()
        ),
        layers=layers,
        sampling=sampling(values),
        Q=coordinates,
        P=latents // coordinates,
        buffers="".join(
            f"    float {y}[{size}];\n" for y, size in zip(to[:-1], sizes[:-1], strict=True)
        ),
        calls=calls + (_SIGMOID.substitute(values) if generator.range == "sigmoid" else ""),
    )
    return {f"{name}_float.h": header(values), f"{name}_float.c": text}
