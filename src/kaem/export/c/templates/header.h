/* ${prefix}.h: a Kolmogorov-Arnold energy model ${about}
 *
 *     ${pixel} image[${guard}_SIZE];
 *     ${prefix}_sample(1, image);
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

/* ${to_latents}. */
void ${prefix}_latents(const ${number} u[${guard}_LATENTS], ${number} ${latent}[${guard}_LATENTS]);

/* Quantiles to data. */
void ${prefix}_generate(const ${number} u[${guard}_LATENTS], ${pixel} image[${guard}_SIZE]);

/* ${of_seeds}. */
void ${prefix}_quantiles(uint32_t seed, ${number} u[${guard}_LATENTS]);
void ${prefix}_sample(uint32_t seed, ${pixel} image[${guard}_SIZE]);

/* A stream of samples, beginning with that of its seed: 2^64 - 1 quantiles before it repeats. */
${state}
void ${prefix}_stream_start(${prefix}_stream *stream, uint32_t seed);
void ${prefix}_stream_quantiles(${prefix}_stream *stream, ${number} u[${guard}_LATENTS]);
void ${prefix}_stream_sample(${prefix}_stream *stream, ${pixel} image[${guard}_SIZE]);

#ifdef __cplusplus
}
#endif
#endif
