"""Microseconds for an image: C, ONNX Runtime, JAX and the decoder of a VAE, taking turns in one process.

    .venv/bin/python benchmarks/export_speed.py RUN [--vae RUN] [--repeats N] [--json]

RUN is a run folder or a model file. Every variant has its input in memory, quantiles (latents for the VAE's decoder),
and is called from Python, on one image or on 100; with 100, times are for each of them. C is compiled with -O3, once in
integers and once in floats, and called through ctypes. ONNX Runtime has one thread, JAX what it takes. Prints a table,
or with --json one object whose `results` are flat.
"""

import argparse
import ctypes
import json
import platform
import tempfile
from functools import partial
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kaem import load
from kaem.export import TARGETS, quantise, tools
from kaem.export.onnx.graph import package
from kaem.export.onnx.target import Compiled, session
from kaem.measuring import interleaved

BATCH = 100
LABELS = {
    "c_integers": "C, integers",
    "c_floats": "C, floats",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime_100": "ONNX Runtime, 100 images",
    "jax": "JAX",
    "jax_100": "JAX, 100 images",
    "vae": "VAE decoder, JAX",
    "vae_100": "VAE decoder, JAX, 100 images",
}


def compiled(model, folder):
    """Calls of both C functions on one image, and the bytes that the first makes against the reference."""
    gcc = tools.find("gcc", "gcc")
    q = quantise(model)
    for name, content in TARGETS["c"].files(q).items():
        (folder / name).write_bytes(content)
    options = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
    tools.run([gcc, *options, "kaem.c", "kaem_float.c", "-o", "kaem.so", "-lm"], folder)
    library = ctypes.CDLL(str(folder / "kaem.so"))
    size, latents = prod(q.data_shape), len(q.tables.words)
    pixel = ctypes.c_uint8 if q.sigmoid is not None else ctypes.c_uint16
    whole = np.random.default_rng(0).integers(0, 1 << 16, latents)
    image, floats = (pixel * size)(), (ctypes.c_float * size)()
    u = (ctypes.c_uint16 * latents)(*whole.tolist())
    float_u = (ctypes.c_float * latents)(*((whole + 0.5) / (1 << 16)).tolist())
    library.kaem_generate(u, image)
    if not np.array_equal(np.asarray(image), q.generate(whole[None]).reshape(-1)):
        raise SystemExit("the compiled model is not its reference: nothing to time")
    return {
        "c_integers": partial(library.kaem_generate, u, image),
        "c_floats": partial(library.kaem_float_generate, float_u, floats),
    }


def through_onnx(model, folder, u):
    for name, content in TARGETS["onnx"].files(model).items():
        (folder / name).write_bytes(content)
    graph = session(folder / "kaem_u.onnx")
    return {
        "onnxruntime": partial(graph.run, ["x"], {"u": u[:1]}),
        "onnxruntime_100": partial(graph.run, ["x"], {"u": u}),
    }


def through_jax(name, model, method, given):
    call = Compiled.of(model, method)
    return {
        name: partial(call, jnp.asarray(given[:1])),
        f"{name}_100": partial(call, jnp.asarray(given)),
    }


def measured(options):
    rng = np.random.default_rng(0)
    model = load(options.run).readable("export")
    u = rng.random((BATCH, *model.prior.shape), np.float32)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        variants = compiled(model, folder) | through_onnx(model, folder, u)
        variants |= through_jax("jax", model, "generate", u)
        if options.vae:
            vae = load(options.vae)
            z = rng.normal(size=(BATCH, *vae.prior.shape)).astype(np.float32)
            variants |= through_jax("vae", vae, "decode", z)
        details = interleaved(variants, options.repeats, least=0.02)
    for name, entry in details.items():
        share = BATCH if name.endswith("_100") else 1
        entry |= {k: v / share for k, v in entry.items() if k != "times"}
        entry["times"] = [t / share for t in entry["times"]]
    return details


def results(details):
    micro = {name: entry["median"] * 1e6 for name, entry in details.items()}
    rest = {f"{name}_over_jax": micro[name] / micro["jax"] for name in micro if name != "jax"}
    return {f"{name}_microseconds": value for name, value in micro.items()} | rest


def render(details):
    lines = ["| an image through | microseconds | quartiles | over JAX |", "|---|---|---|---|"]
    jax_median = details["jax"]["median"]
    for name, entry in details.items():
        low, high = entry["lower_quartile"] * 1e6, entry["upper_quartile"] * 1e6
        ratio = entry["median"] / jax_median
        lines.append(
            f"| {LABELS[name]} | {entry['median'] * 1e6:.3g} | {low:.3g} to {high:.3g} | {ratio:.2g} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--vae", metavar="RUN", help="a run that trained a VAE on the same data")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    details = measured(options)
    if not options.json:
        print(render(details))
        return
    versions = {
        "gcc": tools.version(tools.find("gcc", "gcc")),
        "onnxruntime": package("onnxruntime").__version__,
        "jax": jax.__version__,
        "machine": platform.machine(),
    }
    report = {
        "benchmark": "export_speed",
        "results": results(details) | versions,
        "details": details,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
