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

${sampling}