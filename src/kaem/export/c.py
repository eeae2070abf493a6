"""The model in C99, or C++: integers alone, no heap, no library but `stdint.h` and `string.h`."""

import math
from string import Template
from typing import Any

from ..data.sheets import is_image
from .c_bench import verify
from .c_layers import largest_inputs, layer_text
from .lut import look_up
from .quantised import Quantised
from .stream import STATE, source
from .text import array, identifier, sizes, smallest

__all__ = ["files", "verify"]

_HEADER = Template("""\
/* ${name}.h: a Kolmogorov-Arnold energy model in integers; ${bytes} bytes of tables and weights.
 *
 * A sample takes one pass. ${latents} quantiles of 16 bits (${Q} coordinates, ${P} each) become
 * ${size} ${unit} of shape ${shape}. All functions are reentrant and use the stack alone.
 *
 *     ${pixel} image[${guard}_SIZE];
 *     ${name}_sample(1, image);
 */
#ifndef ${guard}_H
#define ${guard}_H

#include <stdint.h>

#define ${guard}_LATENTS ${latents}
#define ${guard}_SIZE ${size}
${range}
#ifdef __cplusplus
extern "C" {
#endif

/* Quantiles u / 65536 to the words of latents. */
void ${name}_latents(const uint16_t u[${guard}_LATENTS], uint16_t words[${guard}_LATENTS]);

/* Quantiles to data. */
void ${name}_generate(const uint16_t u[${guard}_LATENTS], ${pixel} image[${guard}_SIZE]);

/* A seed to quantiles, and to data: equal seeds give equal data, on every machine, and seeds may simply be counted. */
void ${name}_quantiles(uint32_t seed, uint16_t u[${guard}_LATENTS]);
void ${name}_sample(uint32_t seed, ${pixel} image[${guard}_SIZE]);

/* A stream of samples, beginning with that of its seed: 2^64 - 1 quantiles before it repeats. */
${state}
void ${name}_stream_start(${name}_stream *stream, uint32_t seed);
void ${name}_stream_quantiles(${name}_stream *stream, uint16_t u[${guard}_LATENTS]);
void ${name}_stream_sample(${name}_stream *stream, ${pixel} image[${guard}_SIZE]);

#ifdef __cplusplus
}
#endif
#endif
""")

_SOURCE = Template("""\
/* ${name}.c: see ${name}.h. Written by kaem export; integers throughout, so results are the same everywhere. */
#include "${name}.h"

#include <string.h>

/* Right shifts of negative numbers must round down, as they do in all common compilers. */
typedef char ${name}_shifts_are_arithmetic[(-1 >> 1) == -1 ? 1 : -1];

#ifdef __cplusplus
#define RESTRICT
#else
#define RESTRICT restrict
#endif

/* (sum * multiplier / 2^shift), rounded, between low and high. */
static inline int32_t ${name}_scale(int64_t sum, int32_t multiplier, int shift, int32_t low, int32_t high)
{
    const int64_t y = (sum * multiplier + ((int64_t)1 << (shift - 1))) >> shift;
    return y < low ? low : y > high ? high : (int32_t)y;
}

${helpers}/* The prior: inverse CDFs. */
${tables}
${look_up}
void ${name}_latents(const uint16_t u[${guard}_LATENTS], uint16_t words[${guard}_LATENTS])
{
    for (int i = 0; i < ${guard}_LATENTS; i++)
        words[i] = ${name}_look_up(i, u[i]);
}

/* Words to coordinates: sums over the parts of each. */
${sum_weights}
static void ${name}_coordinates(const uint16_t words[${guard}_LATENTS], uint16_t x[${Q}])
{
    for (int q = 0; q < ${Q}; q++) {
        int64_t sum = ${sum_half};
        for (int p = 0; p < ${P}; p++)
            sum += (int64_t)words[q * ${P} + p] * ${name}_sum_weights[q][p];
        sum >>= ${sum_shift};
        x[q] = (uint16_t)(sum > 65535 ? 65535 : sum);
    }
}

${layers}${sigmoid}void ${name}_generate(const uint16_t u[${guard}_LATENTS], ${pixel} image[${guard}_SIZE])
{
    uint16_t words[${guard}_LATENTS], x_0[${Q}];
${buffers}
    ${name}_latents(u, words);
    ${name}_coordinates(words, x_0);
${calls}}

${stream}
void ${name}_stream_quantiles(${name}_stream *stream, uint16_t u[${guard}_LATENTS])
{
    for (int i = 0; i < ${guard}_LATENTS; i++)
        u[i] = (uint16_t)(${name}_draw(stream) >> 16);
}

void ${name}_stream_sample(${name}_stream *stream, ${pixel} image[${guard}_SIZE])
{
    uint16_t u[${guard}_LATENTS];
    ${name}_stream_quantiles(stream, u);
    ${name}_generate(u, image);
}

void ${name}_quantiles(uint32_t seed, uint16_t u[${guard}_LATENTS])
{
    ${name}_stream stream;
    ${name}_stream_start(&stream, seed);
    ${name}_stream_quantiles(&stream, u);
}

void ${name}_sample(uint32_t seed, ${pixel} image[${guard}_SIZE])
{
    ${name}_stream stream;
    ${name}_stream_start(&stream, seed);
    ${name}_stream_sample(&stream, image);
}
""")

_HELPERS = {
    "choose": Template("""\
/* Both are read before one is taken: a branch would keep compilers from vectorising. */
static inline int32_t ${name}_choose(int which, int32_t first, int32_t second)
{
    return which ? first : second;
}

"""),
    "scale_32": Template("""\
/* The same in 32 bits, for compilers to vectorise: the lower 12 bits of the sum are multiplied apart. */
static inline int32_t ${name}_scale_32(int32_t sum, int32_t multiplier, int shift, int32_t low, int32_t high)
{
    const int32_t lower = ((sum & 4095) * multiplier) >> 12;
    const int32_t y = ((sum >> 12) * multiplier + lower + (1 << (shift - 13))) >> (shift - 12);
    return y < low ? low : y > high ? high : y;
}

"""),
}

_EXAMPLE = Template("""\
/* ${name}_example.c: one sample as ${format}. Build and run:
 *
 *     cc -std=c99 -O3 ${name}_example.c ${name}.c -o example && ./example 7 > ${file}
 */
#include <stdio.h>
#include <stdlib.h>

#include "${name}.h"

int main(int arguments, char **argument)
{
    ${pixel} image[${guard}_SIZE];
    ${name}_sample(arguments > 1 ? (uint32_t)strtoul(argument[1], NULL, 10) : 1, image);
${start}    for (int i = 0; i < ${guard}_SIZE; i++)
        printf(${print});
    return 0;
}
""")


def files(q: Quantised, name: str = "kaem", model: Any = None) -> dict[str, bytes]:
    """`NAME.h`, `NAME.c` and `NAME_example.c`; with the model, its float twin `NAME_float.h` and `NAME_float.c` too."""
    identifier(name)
    made = {
        f"{name}.h": _HEADER.substitute(sizes(q, name), state=STATE.substitute(prefix=name)),
        f"{name}.c": _source(q, name),
        f"{name}_example.c": _example(q, name),
    }
    if model is not None:
        from .c_float import files as float_files

        made |= float_files(model, name)
    return {file: text.encode() for file, text in made.items()}


def _source(q: Quantised, name: str) -> str:
    layers, buffers, calls = "", "", ""
    shape: tuple[int, ...] = (len(q.sum.weights),)
    for i, layer in enumerate(q.layers, 1):
        last, before = i == len(q.layers), shape
        text, shape = layer_text(layer, name, i, before, largest_inputs(q.layers, i))
        layers += text
        made = "image" if last and q.sigmoid is None else f"x_{i}"
        if made != "image":
            buffers += f"    {smallest([layer.scaling.low, layer.scaling.high])} {made}[{math.prod(shape)}];\n"
        calls += f"    {name}_layer_{i}(x_{i - 1}, {made});\n"
    if q.sigmoid is not None:
        calls += f"    for (int i = 0; i < {name.upper()}_SIZE; i++)\n"
        calls += f"        image[i] = {name}_sigmoid[x_{len(q.layers)}[i]];\n"
    return _SOURCE.substitute(
        sizes(q, name),
        tables=array(f"{name}_words", q.tables.words, "uint16_t"),
        look_up=look_up(q.tables, name),
        sum_weights=array(f"{name}_sum_weights", q.sum.weights),
        sum_half=1 << (q.sum.shift - 1),
        sum_shift=q.sum.shift,
        layers=layers,
        stream=source(name),
        helpers="".join(
            text.substitute(name=name)
            for function, text in _HELPERS.items()
            if f"{name}_{function}(" in layers
        ),
        sigmoid=(
            ""
            if q.sigmoid is None
            else "/* Codes to bytes. */\n" + array(f"{name}_sigmoid", q.sigmoid) + "\n"
        ),
        buffers=buffers,
        calls=calls,
    )


def _example(q: Quantised, name: str) -> str:
    common, shape = sizes(q, name), q.data_shape
    if is_image(shape):
        magic, kind = ("P2", "PGM") if shape[2] == 1 else ("P3", "PPM")
        most = 255 if q.sigmoid is not None else 65535
        start = f'    printf("{magic}\\n%d %d\\n%d\\n", {shape[1]}, {shape[0]}, {most});\n'
        row = shape[1] * shape[2]
        show = f"\"%d%c\", image[i], i % {row} == {row - 1} ? '\\n' : ' '"
        return _EXAMPLE.substitute(
            common, format=f"a {kind} image", file=f"sample.{kind.lower()}", start=start, print=show
        )
    guard = name.upper()
    value = f"{guard}_LOW + ({guard}_HIGH - {guard}_LOW) * image[i] / 65535"
    show = f'"%g\\n", {value if q.sigmoid is None else "image[i] / 255.0"}'
    return _EXAMPLE.substitute(
        common, format="numbers, one on a line", file="sample.txt", start="", print=show
    )
