#include <cstdio>

#include "${name}_hls.h"

int main()
{
    uint32_t seed;
    while (std::fread(&seed, sizeof seed, 1, stdin) == 1) {
        hls::stream<uint16_t> made("made");
        ${name}_quantiles(true, seed, made);
        while (!made.empty()) {
            const uint16_t u = made.read();
            std::fwrite(&u, sizeof u, 1, stdout);
        }
    }
    return 0;
}
