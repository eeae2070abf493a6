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
