#include <stdio.h>
#include <string.h>
#include <time.h>

#include "${prefix}.h"

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

int main(int arguments, char **argument)
{
    ${number} u[${guard}_LATENTS], latents[${guard}_LATENTS];
    static ${pixel} image[${guard}_SIZE];
    uint32_t seed = 1;
    ${prefix}_stream stream;

    ${prefix}_stream_start(&stream, seed);
    if (arguments != 2)
        return 1;
${modes}    if (strcmp(argument[1], "time") == 0) { /* the fastest of eight, of a thirtieth of a second each */
        double best = 1e9;
        for (int round = 0; round < 8; round++) {
            int made = 0;
            const double start = seconds();
            while (seconds() - start < 0.03)
                for (int i = 0; i < 10; i++, made++)
                    ${prefix}_sample(seed++, image);
            const double each = 1e6 * (seconds() - start) / made;
            best = each < best ? each : best;
        }
        printf("%.3f", best);
    }
    return 0;
}
