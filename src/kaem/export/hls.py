"""The model in C++ for high-level synthesis: Vitis HLS, or any compiler for simulation.

Processes joined by streams: quantiles, words, coordinates, one process for each layer, data. Integers are those of C;
`hls::stream` is AMD's where its header is found, and a queue elsewhere.
"""

import re
from string import Template

from ..errors import UserError
from .hls_bench import TEST_BENCH, golden, verify
from .hls_layers import layers_text
from .lut import look_up
from .quantised import Quantised
from .stream import STATE, source
from .text import array, identifier, sizes

__all__ = ["PART", "files", "verify"]

PART = "xc7a35tcpg236-1"  # Artix-7, on small boards
_GOLDEN = (200, 4, 200)  # prior samples, images and draws in the file that is exported

_STREAM = """\
/* hls_shim.h: hls::stream where Vitis HLS is not installed, for simulation. */
#ifndef HLS_SHIM_H
#define HLS_SHIM_H

#if defined(__SYNTHESIS__) || defined(__VITIS_HLS__)
#define HLS_STREAM_INSTALLED
#elif defined(__has_include)
#if __has_include(<hls_stream.h>)
#define HLS_STREAM_INSTALLED
#endif
#endif

#ifdef HLS_STREAM_INSTALLED
#include <hls_stream.h>
#else

#include <cstdlib>
#include <queue>

namespace hls {

template <typename T> class stream {
public:
    stream() {}
    explicit stream(const char *) {}
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    bool empty() const { return values.empty(); }
    void write(const T &value) { values.push(value); }

    T read()
    {
        if (values.empty())
            std::abort(); /* hardware would wait for ever */
        const T value = values.front();
        values.pop();
        return value;
    }

private:
    std::queue<T> values;
};

} // namespace hls

#endif
#endif
"""

_HEADER = Template("""\
/* ${name}_hls.h: a Kolmogorov-Arnold energy model for high-level synthesis; ${bytes} bytes of tables and weights.
 *
 * ${name}_prior      ${latents} quantiles of 16 bits in, as many words of latents out.
 * ${name}_top        ${latents} quantiles in, ${size} ${unit} out, of shape ${shape}; processes run concurrently.
 * ${name}_quantiles  ${latents} quantiles out: with start, those of a seed; without, the next of its stream, of which
 *                    2^64 - 1 come before it repeats. Seeds may simply be counted.
 *
 * All take one sample for each call, through AXI streams. Tables and weights, ${kilobits} Kbit, must fit into the part.
 */
#ifndef ${guard}_HLS_H
#define ${guard}_HLS_H

#include <stdint.h>

#include "hls_shim.h"

#define ${guard}_LATENTS ${latents}
#define ${guard}_SIZE ${size}
${range}
void ${name}_prior(hls::stream<uint16_t> &quantiles, hls::stream<uint16_t> &words);
void ${name}_top(hls::stream<uint16_t> &quantiles, hls::stream<${pixel}> &image);
void ${name}_quantiles(bool start, uint32_t seed, hls::stream<uint16_t> &quantiles);

#endif
""")

_SOURCE = Template("""\
/* ${name}_hls.cpp: see ${name}_hls.h. Written by kaem export. */
#include "${name}_hls.h"

/* (sum * multiplier / 2^shift), rounded, between low and high. */
static int32_t ${name}_scale(int64_t sum, int32_t multiplier, int shift, int32_t low, int32_t high)
{
#pragma HLS INLINE
    const int64_t y = (sum * multiplier + ((int64_t)1 << (shift - 1))) >> shift;
    return y < low ? low : y > high ? high : (int32_t)y;
}

/* The prior: inverse CDFs. */
${tables}
${look_up}
static void ${name}_words_of(hls::stream<uint16_t> &quantiles, hls::stream<uint16_t> &words)
{
    for (int i = 0; i < ${guard}_LATENTS; i++) {
#pragma HLS PIPELINE II=1
        words.write(${name}_look_up(i, quantiles.read()));
    }
}

/* Words to coordinates: sums over the parts of each. */
${sum_weights}
static void ${name}_coordinates(hls::stream<uint16_t> &words, hls::stream<uint16_t> &x)
{
    for (int q = 0; q < ${Q}; q++) {
        int64_t sum = ${sum_half};
        for (int p = 0; p < ${P}; p++) {
#pragma HLS PIPELINE II=1
            sum += (int64_t)words.read() * ${name}_sum_weights[q][p];
        }
        sum >>= ${sum_shift};
        x.write((uint16_t)(sum > 65535 ? 65535 : sum));
    }
}

${layers}${output}void ${name}_prior(hls::stream<uint16_t> &quantiles, hls::stream<uint16_t> &words)
{
#pragma HLS INTERFACE axis port=quantiles
#pragma HLS INTERFACE axis port=words
#pragma HLS INTERFACE s_axilite port=return
    ${name}_words_of(quantiles, words);
}

void ${name}_top(hls::stream<uint16_t> &quantiles, hls::stream<${pixel}> &image)
{
#pragma HLS INTERFACE axis port=quantiles
#pragma HLS INTERFACE axis port=image
#pragma HLS INTERFACE s_axilite port=return
#pragma HLS DATAFLOW
    hls::stream<uint16_t> words("words"), x_0("x_0");
#pragma HLS STREAM variable=words depth=16
#pragma HLS STREAM variable=x_0 depth=16
${streams}
    ${name}_words_of(quantiles, words);
    ${name}_coordinates(words, x_0);
${calls}}

${state}
${stream}
void ${name}_quantiles(bool start, uint32_t seed, hls::stream<uint16_t> &quantiles)
{
#pragma HLS INTERFACE s_axilite port=start
#pragma HLS INTERFACE s_axilite port=seed
#pragma HLS INTERFACE axis port=quantiles
#pragma HLS INTERFACE s_axilite port=return
    static ${name}_stream stream = {0, 1}; /* before the first start; zero would stay zero */
    if (start)
        ${name}_stream_start(&stream, seed);
    for (int i = 0; i < ${guard}_LATENTS; i++) {
#pragma HLS PIPELINE II=1
        quantiles.write((uint16_t)(${name}_draw(&stream) >> 16));
    }
}
""")

_OUTPUT = Template("""\
/* Codes to bytes. */
${table}
static void ${name}_output(hls::stream<uint16_t> &codes, hls::stream<uint8_t> &image)
{
    for (int i = 0; i < ${guard}_SIZE; i++) {
#pragma HLS PIPELINE II=1
        image.write(${name}_sigmoid[codes.read()]);
    }
}

""")

_TCL = Template("""\
# run_hls.tcl: simulates, synthesises and packs the design. Run: vitis_hls -f run_hls.tcl
open_project -reset ${name}_hls
set_top ${name}_top
add_files ${name}_hls.cpp
add_files -tb [list ${name}_tb.cpp ${name}_golden.txt]
open_solution -reset solution
set_part {${part}}
create_clock -period 10 -name default
csim_design
csynth_design
export_design -format ip_catalog
exit
""")


def files(q: Quantised, name: str = "kaem", part: str = PART) -> dict[str, bytes]:
    """`NAME_hls.h`, `NAME_hls.cpp`, `hls_shim.h`, the test bench with golden vectors, and `run_hls.tcl`."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", identifier(name) and part) is None:
        raise UserError(f"the part must be a name such as {PART}, got {part!r}.")
    common = sizes(q, name)
    made = {
        "hls_shim.h": _STREAM,
        f"{name}_hls.h": _HEADER.substitute(common),
        f"{name}_hls.cpp": _source(q, name),
        f"{name}_tb.cpp": TEST_BENCH.substitute(common),
        f"{name}_golden.txt": golden(q, *_GOLDEN),
        "run_hls.tcl": _TCL.substitute(name=name, part=part),
    }
    return {file: text.encode() for file, text in made.items()}


def _source(q: Quantised, name: str) -> str:
    common = sizes(q, name)
    layers, kinds = layers_text(q, name)
    streams, calls, last = "", "", len(kinds)
    for i, kind in enumerate(kinds, 1):
        made = "image" if i == last and q.sigmoid is None else f"x_{i}"
        if made != "image":
            streams += f'    hls::stream<{kind}> {made}("{made}");\n'
            streams += f"#pragma HLS STREAM variable={made} depth=16\n"
        calls += f"    {name}_layer_{i}(x_{i - 1}, {made});\n"
    output = ""
    if q.sigmoid is not None:
        output = _OUTPUT.substitute(common, table=array(f"{name}_sigmoid", q.sigmoid))
        calls += f"    {name}_output(x_{last}, image);\n"
    return _SOURCE.substitute(
        common,
        tables=array(f"{name}_words", q.tables.words, "uint16_t"),
        look_up=look_up(q.tables, name),
        sum_weights=array(f"{name}_sum_weights", q.sum.weights),
        sum_half=1 << (q.sum.shift - 1),
        sum_shift=q.sum.shift,
        layers=layers,
        output=output,
        streams=streams,
        calls=calls,
        state=STATE.substitute(prefix=name),
        stream=source(name, "static "),
    )
