#include <stdio.h>
#include "${name}_tables.h"

int main(void)
{
    uint16_t u[${latents}];
    while (fread(u, sizeof u, 1, stdin) == 1) {
        for (int i = 0; i < ${latents}; i++)
            u[i] = ${name}_look_up(i, u[i]);
        fwrite(u, sizeof u, 1, stdout);
    }
    return 0;
}
