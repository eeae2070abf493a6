r"""The model in C99 and floating point: exact inverse CDFs and the generator itself, with `math.h` alone.

The prior is the rational-quadratic table of `kaem.priors.inverse_transform`, searched by bisection; with
$y = (u - F_k)/\Delta$ in the cell of $u$, $\xi$ is the smaller root of $a\xi^2 + b\xi - y = 0$. Nothing is quantised, so this
twin shows what integers cost, and suits machines that have a floating-point unit.
"""

import math
import tempfile
from pathlib import Path
from string import Template
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..generators import CNN, KAN
from ..model import AbstractModel
from . import tools
from .c_float_layers import cnn_text, kan_text
from .quantised import exportable
from .stream import MOST_STREAMED, STATE, compared, quantiles, source
from .text import array

_BITS = 23  # of a draw: with half of the last one added, a float32 still has them all

_HEADER = Template("""\
/* ${name}_float.h: a Kolmogorov-Arnold energy model in floating point; needs math.h.
 *
 * ${latents} quantiles in [0, 1] become ${size} numbers of shape ${shape}. All functions are reentrant
 * and use the stack alone.
 *
 *     float image[${guard}_FLOAT_SIZE];
 *     ${name}_float_sample(1, image);
 */
#ifndef ${guard}_FLOAT_H
#define ${guard}_FLOAT_H

#include <stdint.h>

#define ${guard}_FLOAT_LATENTS ${latents}
#define ${guard}_FLOAT_SIZE ${size}

#ifdef __cplusplus
extern "C" {
#endif

/* Quantiles to latents, by exact inverse CDFs. */
void ${name}_float_latents(const float u[${guard}_FLOAT_LATENTS], float z[${guard}_FLOAT_LATENTS]);

/* Quantiles to data. */
void ${name}_float_generate(const float u[${guard}_FLOAT_LATENTS], float image[${guard}_FLOAT_SIZE]);

/* A seed to quantiles, never 0 or 1, and to data: the draws of ${name}.h with 23 bits of each. */
void ${name}_float_quantiles(uint32_t seed, float u[${guard}_FLOAT_LATENTS]);
void ${name}_float_sample(uint32_t seed, float image[${guard}_FLOAT_SIZE]);

/* A stream of samples, beginning with that of its seed: 2^64 - 1 quantiles before it repeats. */
${state}
void ${name}_float_stream_start(${name}_float_stream *stream, uint32_t seed);
void ${name}_float_stream_quantiles(${name}_float_stream *stream, float u[${guard}_FLOAT_LATENTS]);
void ${name}_float_stream_sample(${name}_float_stream *stream, float image[${guard}_FLOAT_SIZE]);

#ifdef __cplusplus
}
#endif
#endif
""")

_SOURCE = Template("""\
/* ${name}_float.c: see ${name}_float.h. Written by kaem export. */
#include "${name}_float.h"

#include <float.h>
#include <math.h>
#include <string.h>

static inline float clip(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* The prior: CDFs and densities on the knots of ${cells} cells. */
${tables}
void ${name}_float_latents(const float u[${guard}_FLOAT_LATENTS], float z[${guard}_FLOAT_LATENTS])
{
    for (int i = 0; i < ${guard}_FLOAT_LATENTS; i++) {
        const float *knots = ${name}_knots[i], lo = ${name}_lo[i], hi = ${name}_hi[i];
        int k = 0, end = ${cells};
        while (end - k > 1) {
            const int middle = (k + end) / 2;
            if (knots[middle] <= u[i])
                k = middle;
            else
                end = middle;
        }
        const float mass = fmaxf(knots[k + 1] - knots[k], FLT_MIN);
        const float per_slope = (hi - lo) / ${cells}.0f / mass;
        const float d0 = clip(${name}_density[i][k] * per_slope, 1e-4f, 1e4f);
        const float d1 = clip(${name}_density[i][k + 1] * per_slope, 1e-4f, 1e4f);
        const float y = clip((u[i] - knots[k]) / mass, 0.0f, 1.0f), tilt = y * (d0 + d1 - 2.0f);
        const float a = 1.0f - d0 + tilt, b = d0 - tilt;
        const float xi = 2.0f * y / (b + sqrtf(fmaxf(b * b + 4.0f * a * y, 1e-12f)));
        z[i] = lo + (hi - lo) * (((float)k + clip(xi, 0.0f, 1.0f)) / ${cells}.0f);
    }
}

${layers}void ${name}_float_generate(const float u[${guard}_FLOAT_LATENTS], float image[${guard}_FLOAT_SIZE])
{
    float z[${guard}_FLOAT_LATENTS], x_0[${Q}];
${buffers}
    ${name}_float_latents(u, z);
    for (int q = 0; q < ${Q}; q++) {
        x_0[q] = 0.0f;
        for (int p = 0; p < ${P}; p++)
            x_0[q] += z[q * ${P} + p];
    }
${calls}}

${stream}
void ${name}_float_stream_quantiles(${name}_float_stream *stream, float u[${guard}_FLOAT_LATENTS])
{
    for (int i = 0; i < ${guard}_FLOAT_LATENTS; i++) /* exact in 24 bits */
        u[i] = ((float)(${name}_float_draw(stream) >> 9) + 0.5f) / 8388608.0f;
}

void ${name}_float_stream_sample(${name}_float_stream *stream, float image[${guard}_FLOAT_SIZE])
{
    float u[${guard}_FLOAT_LATENTS];
    ${name}_float_stream_quantiles(stream, u);
    ${name}_float_generate(u, image);
}

void ${name}_float_quantiles(uint32_t seed, float u[${guard}_FLOAT_LATENTS])
{
    ${name}_float_stream stream;
    ${name}_float_stream_start(&stream, seed);
    ${name}_float_stream_quantiles(&stream, u);
}

void ${name}_float_sample(uint32_t seed, float image[${guard}_FLOAT_SIZE])
{
    ${name}_float_stream stream;
    ${name}_float_stream_start(&stream, seed);
    ${name}_float_stream_sample(&stream, image);
}
""")

_SIGMOID = Template("""\
    for (int i = 0; i < ${guard}_FLOAT_SIZE; i++)
        image[i] = 1.0f / (1.0f + expf(-image[i]));
""")

_BENCH = Template("""\
#include <stdio.h>
#include <string.h>

#include "${name}_float.h"

int main(int arguments, char **argument)
{
    float u[${guard}_FLOAT_LATENTS];
    static float image[${guard}_FLOAT_SIZE];
    uint32_t seed = 1;
    ${name}_float_stream stream;

    ${name}_float_stream_start(&stream, seed);
    if (arguments != 2)
        return 1;
    if (strcmp(argument[1], "images") == 0) {
        while (fread(u, sizeof u, 1, stdin) == 1) {
            ${name}_float_generate(u, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    } else if (strcmp(argument[1], "samples") == 0) {
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_float_sample(seed, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    } else if (strcmp(argument[1], "quantiles") == 0) {
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_float_quantiles(seed, u);
            fwrite(u, sizeof u, 1, stdout);
        }
    } else { /* a stream of the seed 1, as many samples as there are numbers */
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_float_stream_sample(&stream, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    }
    return 0;
}
""")


def files(model: AbstractModel, name: str) -> dict[str, str]:
    """`NAME_float.h` and `NAME_float.c`."""
    kaem = exportable(model)
    generator, table = kaem.generator, kaem.prior.table
    latents, coordinates = math.prod(kaem.prior.shape), kaem.prior.shape[0]
    flat = {
        field: np.asarray(getattr(table, field), np.float32).reshape(latents, -1)
        for field in ("knots", "density", "lo", "hi")
    }
    if isinstance(generator, KAN):
        layers, sizes = kan_text(generator, name)
    else:
        assert isinstance(generator, CNN)
        layers, sizes = cnn_text(generator, name)
    made = [f"x_{i}" for i in range(1, len(sizes))] + ["image"]
    calls = "".join(f"    {name}_layer_{i + 1}(x_{i}, {y});\n" for i, y in enumerate(made))
    common = {
        "name": name,
        "guard": name.upper(),
        "latents": latents,
        "size": math.prod(kaem.data_shape),
        "shape": " x ".join(str(size) for size in kaem.data_shape),
    }
    text = _SOURCE.substitute(
        common,
        cells=table.cells,
        tables="".join(
            array(f"{name}_{field}", values if values.shape[1] > 1 else values[:, 0], "float")
            for field, values in flat.items()
        ),
        layers=layers,
        stream=source(f"{name}_float"),
        Q=coordinates,
        P=latents // coordinates,
        buffers="".join(
            f"    float {y}[{size}];\n" for y, size in zip(made[:-1], sizes[:-1], strict=True)
        ),
        calls=calls + (_SIGMOID.substitute(common) if generator.output == "sigmoid" else ""),
    )
    header = _HEADER.substitute(common, state=STATE.substitute(prefix=f"{name}_float"))
    return {f"{name}_float.h": header, f"{name}_float.c": text}


def largest_difference(folder: Path, model: AbstractModel, name: str, images: int) -> float:
    """Between what the C makes of random quantiles and what the model does.

    All `images` are made by C99, and the first twenty again by C++ with sanitisers; both compile without a warning.
    """
    kaem = exportable(model)
    u = np.random.default_rng(0).random((images, math.prod(kaem.prior.shape)), np.float32)
    expected = np.asarray(kaem.generate(jnp.asarray(u.reshape(images, *kaem.prior.shape))))
    sanitised = ["-std=c++11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    largest = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for program, options, few in (
            ("gcc", ["-std=c99", "-O2"], images),
            ("g++", sanitised, min(images, 20)),
        ):
            _build(folder, work, name, program, options)
            made = _printed(work, program, "images", u[:few])
            apart = np.abs(made.reshape(expected[:few].shape) - expected[:few])
            largest = max(largest, float(apart.max()))
    return largest


def compared_draws(folder: Path, model: AbstractModel, name: str, images: int) -> dict[str, Any]:
    """Compare draws from seeds and from a stream with the reference, and test that they are uniform."""
    latents, images = math.prod(exportable(model).prior.shape), min(images, MOST_STREAMED)
    seeds = np.arange(images, dtype="<u4")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        _build(folder, work, name, "gcc", ["-std=c99", "-O2"])

        def draw(seeds: np.ndarray) -> np.ndarray:
            u = _printed(work, "gcc", "quantiles", seeds.astype("<u4"))
            return u.astype(np.float64) * (1 << _BITS) - 0.5

        def differing(what: str, drawn: np.ndarray) -> int:
            u = ((drawn + 0.5) / (1 << _BITS)).astype(np.float32)
            expected = _printed(work, "gcc", "images", u)
            return int(np.sum(_printed(work, "gcc", what, seeds) != expected))

        found = {
            "sample_mismatches": differing("samples", quantiles(seeds, latents, _BITS)),
            "stream_mismatches": differing(
                "stream", quantiles(np.array([1]), images * latents, _BITS)
            ),
            **compared(draw, latents, _BITS),
        }
    return {f"float_{what}": value for what, value in found.items()}


def _build(folder: Path, work: Path, name: str, program: str, options: list[str]) -> None:
    """Compile the test bench, without a warning, into a program of the compiler's name."""
    place = str(folder.resolve())
    (work / "bench.c").write_text(_BENCH.substitute(name=name, guard=name.upper()))
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", place]
    sources = ["bench.c", f"{place}/{name}_float.c", "-o", program, "-lm"]
    tools.run([tools.find(program, program), *options, *strict, *sources], work)


def _printed(work: Path, program: str, what: str, given: np.ndarray) -> np.ndarray:
    return np.frombuffer(tools.run([f"./{program}", what], work, given.tobytes()), np.float32)
