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
