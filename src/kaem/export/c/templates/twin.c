/* ${prefix}.c: see ${prefix}.h. Written by kaem export. */
#include "${prefix}.h"

#include <float.h>
#include <math.h>
#include <string.h>

static inline float clip(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* The prior: CDFs and densities on the knots of ${cells} cells. */
${tables}
void ${prefix}_latents(const float u[${guard}_LATENTS], float z[${guard}_LATENTS])
{
    for (int i = 0; i < ${guard}_LATENTS; i++) {
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

${layers}void ${prefix}_generate(const float u[${guard}_LATENTS], float image[${guard}_SIZE])
{
    float z[${guard}_LATENTS], x_0[${Q}];
${buffers}
    ${prefix}_latents(u, z);
    for (int q = 0; q < ${Q}; q++) {
        x_0[q] = 0.0f;
        for (int p = 0; p < ${P}; p++)
            x_0[q] += z[q * ${P} + p];
    }
${calls}}

${sampling}