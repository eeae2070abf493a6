/* ${name}_tb.cpp: compares the design with golden vectors; ends with 1 if a value differs, with 2 without vectors.
 *
 * The file (the first argument, or ${name}_golden.txt) has the numbers of samples, of images and of draws; for each sample
 * its quantiles and words; for each image its quantiles and data; for each draw whether it starts a stream, both halves of
 * its seed, and its quantiles.
 */
#include <cstdio>

#include "${name}_hls.h"

static bool number(FILE *file, long &value)
{
    return std::fscanf(file, "%ld", &value) == 1;
}

/* Draws as a design with three inputs. */
static void draw(hls::stream<uint16_t> &given, hls::stream<uint16_t> &made)
{
    const bool start = given.read() != 0;
    const uint32_t upper = given.read(), lower = given.read();
    ${name}_quantiles(start, upper << 16 | lower, made);
}

/* Feeds the inputs of one line to a design, and counts what differs from the line; -1 if the file ends. */
template <typename T, typename Design> static long differing(FILE *file, Design design, int inputs, int outputs)
{
    hls::stream<uint16_t> given("given");
    hls::stream<T> made("made");
    long value = 0, different = 0;
    for (int i = 0; i < inputs; i++) {
        if (!number(file, value))
            return -1;
        given.write((uint16_t)value);
    }
    design(given, made);
    for (int i = 0; i < outputs; i++) {
        if (!number(file, value))
            return -1;
        different += made.read() != value;
    }
    return made.empty() && given.empty() ? different : different + 1;
}

int main(int arguments, char **argument)
{
    FILE *file = std::fopen(arguments > 1 ? argument[1] : "${name}_golden.txt", "r");
    long samples = 0, images = 0, draws = 0, prior = 0, whole = 0, drawn = 0;
    if (file == NULL || !number(file, samples) || !number(file, images) || !number(file, draws)) {
        std::printf("no golden vectors\n");
        return 2;
    }
    for (long n = 0; n < samples + images + draws; n++) {
        const long different = n < samples ? differing<uint16_t>(file, ${name}_prior, ${guard}_LATENTS, ${guard}_LATENTS)
            : n < samples + images         ? differing<${pixel}>(file, ${name}_top, ${guard}_LATENTS, ${guard}_SIZE)
                                           : differing<uint16_t>(file, draw, 3, ${guard}_LATENTS);
        if (different < 0) {
            std::printf("the golden vectors end early\n");
            std::fclose(file);
            return 2;
        }
        (n < samples ? prior : n < samples + images ? whole : drawn) += different;
    }
    std::fclose(file);
    std::printf("prior samples %ld, mismatches %ld; images %ld, mismatches %ld; ", samples, prior, images, whole);
    std::printf("draws %ld, mismatches %ld\n", draws, drawn);
    return prior + whole + drawn == 0 ? 0 : 1;
}
