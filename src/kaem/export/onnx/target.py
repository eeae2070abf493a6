r"""Models as ONNX graphs: `NAME_u.onnx` takes quantiles u, `NAME_z.onnx` latents z, and both make data x.

A graph computes in float32, as JAX does. The two round differently, and functions of a trained generator may be steep:
verification measures what float32 costs JAX itself, against JAX in double precision, and holds the graph to 1e-5 or
that, whichever is larger.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ...errors import UserError
from ...measuring import interleaved
from ...models import KAEM, AbstractModel
from ..target import Target
from .graph import Graph, package
from .layers import generator, inverse_cdf

TOLERANCE = 1e-5
_AS_GOOD = 4  # times as far from double precision as JAX is, that a graph may be
BATCHES = (1, 7, 64)


class Onnx(Target):
    """Two graphs in float32, of a batch of any size."""

    summary: ClassVar[str] = "graphs from quantiles and from latents to data, in floating point"

    def files(self, subject: KAEM, name: str = "kaem") -> dict[str, bytes]:
        """Return `NAME_u.onnx` and `NAME_z.onnx`."""
        table, shape = subject.prior.table, tuple(subject.prior.shape)
        contents: dict[str, bytes] = {}
        for takes in ("u", "z"):
            graph = Graph()
            z = inverse_cdf(graph, table, "u", shape) if takes == "u" else "z"
            x = graph.reshape(generator(graph, subject, z), *subject.data_shape)
            contents[f"{name}_{takes}.onnx"] = graph.model(x, takes, shape, subject.data_shape)
        return contents

    def verify(
        self,
        folder: Path,
        subject: KAEM,
        name: str = "*",
        *,
        samples: int = 1_000,
        repeats: int = 15,
    ) -> dict[str, Any]:
        """Compare what onnxruntime makes of both graphs in `folder` with JAX, and time one sample in turns."""
        model = eqx.tree_at(lambda m: m.generator, subject, subject.generator.prepared())
        u = np.random.default_rng(0).random((samples, *model.prior.shape), np.float32)
        result: dict[str, Any] = {
            "tool": f"onnxruntime {package('onnxruntime').__version__}",
            "samples": samples,
        }
        variants: dict[str, Callable[[], Any]] = {}
        for takes, method in (("u", "generate"), ("z", "decode")):
            path = _only(Path(folder), f"{name}_{takes}.onnx")
            graph, compiled = session(path), Compiled.of(model, method)
            x = u if takes == "u" else np.asarray(model.prior.inverse_cdf(u))
            expected = np.asarray(compiled(x))
            exact, made = compiled.in_double(x), _in_batches(graph, takes, x)
            rounding = float(np.abs(expected - exact).max())
            gap = np.abs(made - expected)
            allowed = max(TOLERANCE, _AS_GOOD * rounding)
            result |= {
                f"{takes}_bytes": path.stat().st_size,
                f"{takes}_largest_difference": float(gap.max()),
                f"{takes}_rounding_of_jax": rounding,
                f"{takes}_over_1e-5": int((gap > TOLERANCE).sum()),
                f"{takes}_mismatches": int((np.abs(made - exact) > allowed).sum()),
            }
            if takes == "u":
                variants["onnxruntime"] = partial(graph.run, ["x"], {"u": x[:1]})
                variants["jax"] = partial(compiled, jnp.asarray(x[:1]))
        times = interleaved(variants, repeats, least=0.02)
        for name, entry in times.items():
            result[f"{name}_microseconds"] = entry["median"] * 1e6
        result["onnxruntime_over_jax"] = times["onnxruntime"]["median"] / times["jax"]["median"]
        return result


def session(path: Path) -> Any:
    """Open a graph in onnxruntime, on one thread: images are too small to share among several."""
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Compiled:
    """A model's method as a function of arrays, which may be of either precision."""

    run: Callable[[Any, Any], Any]
    arrays: Any

    @staticmethod
    def of(model: AbstractModel, method: str) -> "Compiled":
        arrays, static = eqx.partition(model, eqx.is_array)
        return Compiled(jax.jit(lambda a, x: getattr(eqx.combine(a, static), method)(x)), arrays)

    def __call__(self, x: Any) -> Any:
        return self.run(self.arrays, x)

    def in_double(self, x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        def wide(leaf: Any) -> np.ndarray:
            found = np.asarray(leaf)
            return found.astype(np.float64) if found.dtype == np.float32 else found

        with jax.enable_x64(True):
            return np.asarray(self.run(jax.tree.map(wide, self.arrays), wide(x)))


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UserError(
            f"{folder} holds {len(found)} files {pattern}, expected one; export the model into a "
            "folder of its own."
        )
    return found[0]


def _in_batches(
    graph: Any, takes: str, x: Float[np.ndarray, "n ..."]
) -> Float[np.ndarray, "n ..."]:
    """Run all samples: one batch of each size, and the last size as often as it takes."""
    cuts = np.cumsum([*BATCHES, *(BATCHES[-1] for _ in range(len(x) // BATCHES[-1]))])
    parts = np.split(x, cuts[cuts < len(x)])
    return np.concatenate([graph.run(["x"], {takes: part})[0] for part in parts])
