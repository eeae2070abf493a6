/* ${name}_tables.h: the prior of a Kolmogorov-Arnold energy model as look-up tables.
 *
 * ${latents} latents, latent i = q * ${P} + p for the coordinate q < ${Q} and its part p < ${P};
 * ${entries} words of ${bits} bits each, ${bytes} bytes in all. A word w stands for
 * z = ${name}_lo[i] + (${name}_hi[i] - ${name}_lo[i]) * w / ${top}.
 *
 *     uint16_t w = ${name}_look_up(i, u);      u: 16 random bits
 */
#ifndef ${guard}_TABLES_H
#define ${guard}_TABLES_H

#include <stdint.h>

${tables}
${lo}
${hi}
${look_up}
#endif
