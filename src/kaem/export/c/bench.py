"""The C of a model and of its float twin, compiled, compared with their references, and timed."""

import math
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...models import KAEM
from .. import tools
from ..integer import Quantised
from ..integer.stream import MOST_STREAMED, compared, mixed_seeds, quantiles
from ..integer.tables import U_BITS
from . import twin
from .interface import Bench

_FLOAT = 1e-4  # beyond what rounding in float32 makes of a generator that bends much
_SANITISED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def verify(
    folder: Path, q: Quantised, values: dict[str, Any], samples: int, images: int
) -> dict[str, Any]:
    """Compare latents of `samples` draws and `images` images with the reference, in C99 and in C++."""
    gcc, gxx = tools.find("gcc"), tools.find("g++")
    rng, latents = np.random.default_rng(0), len(q.tables.words)
    u = rng.integers(0, 1 << U_BITS, (max(samples, images), latents))
    seeds, pixel = mixed_seeds(images), "<u1" if q.sigmoid is not None else "<u2"
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(folder, Path(temporary), values)

        def mismatches(program: str, samples: int, images: int) -> dict[str, int]:
            bits, few = u.astype("<u2"), seeds[:images].astype("<u4")
            going_on = min(images, MOST_STREAMED)
            checks = {
                "prior": ("latents", bits[:samples], q.tables.look_up(u[:samples]), "<u2"),
                "image": ("images", bits[:images], q.generate(u[:images]), pixel),
                "sample": ("samples", few, q.sample(few), pixel),
                "stream": ("stream", few[:going_on], q.stream(1, going_on), pixel),
            }
            return {
                f"{what}_mismatches": int(
                    np.sum(bench.printed(program, mode, given, kind) != expected.ravel())
                )
                for what, (mode, given, expected, kind) in checks.items()
            }

        bench.build(gcc, "o2", "-std=c99", "-O2")
        bench.build(gcc, "o3", "-std=c99", "-O3", "-march=native")
        results: dict[str, Any] = {
            "tool": tools.version(gcc),
            "tool_cpp": tools.version(gxx),
            "prior_samples": samples,
            "images": images,
            **mismatches("o3", samples, images),
            **compared(
                lambda seeds: bench.printed("o3", "quantiles", seeds.astype("<u4"), "<u2"), latents
            ),
        }
        for compiler, program, standard in ((gcc, "c", "c99"), (gxx, "cpp", "c++11")):
            bench.build(compiler, program, f"-std={standard}", *_SANITISED)
            few = mismatches(program, min(samples, 1_000), min(images, 20))
            results[f"sanitised_mismatches_{program}"] = sum(few.values())
        for program in ("o2", "o3"):
            results[f"microseconds_{program}"] = bench.microseconds(program)
    return results


def verify_twin(folder: Path, model: KAEM, name: str, images: int) -> dict[str, Any]:
    """Compare the float twin with the model, and its draws with the reference; test that they are uniform.

    All `images` are made by C99, and the first twenty again by C++ with sanitisers.
    """
    shape, going_on = model.prior.shape, min(images, MOST_STREAMED)
    latents, few = math.prod(shape), np.arange(going_on, dtype="<u4")
    u = np.random.default_rng(0).random((images, latents), np.float32)
    expected = np.asarray(model.generate(jnp.asarray(u.reshape(images, *shape))))
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(folder, Path(temporary), twin.interface(model, name))
        bench.build(tools.find("gcc"), "c", "-std=c99", "-O2")
        bench.build(tools.find("g++"), "cpp", "-std=c++11", *_SANITISED)

        def printed(mode: str, given: np.ndarray, program: str = "c") -> np.ndarray:
            return bench.printed(program, mode, given, "<f4")

        def difference(program: str, count: int) -> float:
            apart = printed("images", u[:count], program) - expected[:count].ravel()
            return float(np.abs(apart).max())

        def differing(mode: str, drawn: np.ndarray) -> int:
            middles = ((drawn + 0.5) / (1 << twin.BITS)).astype(np.float32)
            return int(np.sum(printed(mode, few) != printed("images", middles)))

        def draw(seeds: np.ndarray) -> np.ndarray:
            drawn = printed("quantiles", seeds.astype("<u4")).astype(np.float64)
            return drawn * (1 << twin.BITS) - 0.5

        largest = max(difference("c", images), difference("cpp", min(images, 20)))
        stream = quantiles(np.array([1]), going_on * latents, twin.BITS)
        results = {
            "difference": largest,
            "mismatches": int(largest > _FLOAT),
            "sample_mismatches": differing("samples", quantiles(few, latents, twin.BITS)),
            "stream_mismatches": differing("stream", stream),
            **compared(draw, latents, twin.BITS),
        }
    return {f"float_{what}": value for what, value in results.items()}
