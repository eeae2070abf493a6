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
