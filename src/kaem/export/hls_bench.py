"""The test bench of `kaem.export.hls`, its golden vectors, and running it."""

import re
import tempfile
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from . import tools
from .quantised import Quantised
from .stream import MOST_STREAMED, compared, mixed_seeds, quantiles
from .tables import U_BITS

TEST_BENCH = Template("""\
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
        std::printf("no golden vectors\\n");
        return 2;
    }
    for (long n = 0; n < samples + images + draws; n++) {
        const long different = n < samples ? differing<uint16_t>(file, ${name}_prior, ${guard}_LATENTS, ${guard}_LATENTS)
            : n < samples + images         ? differing<${pixel}>(file, ${name}_top, ${guard}_LATENTS, ${guard}_SIZE)
                                           : differing<uint16_t>(file, draw, 3, ${guard}_LATENTS);
        if (different < 0) {
            std::printf("the golden vectors end early\\n");
            std::fclose(file);
            return 2;
        }
        (n < samples ? prior : n < samples + images ? whole : drawn) += different;
    }
    std::fclose(file);
    std::printf("prior samples %ld, mismatches %ld; images %ld, mismatches %ld; ", samples, prior, images, whole);
    std::printf("draws %ld, mismatches %ld\\n", draws, drawn);
    return prior + whole + drawn == 0 ? 0 : 1;
}
""")


_DRAWS = Template("""\
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
""")


def golden(q: Quantised, samples: int, images: int, draws: int) -> str:
    """Vectors for the test bench, a line each: quantiles and words, quantiles and data, draws.

    The first half of the draws are of counted and random seeds, the others the stream of the last of these.
    """
    rng, latents = np.random.default_rng(0), len(q.tables.words)
    u = rng.integers(0, 1 << U_BITS, (max(samples, images), latents))
    words, made = q.tables.look_up(u[:samples]), q.generate(u[:images]).reshape(images, -1)
    seeds = mixed_seeds((draws + 1) // 2)
    going_on = draws - len(seeds)
    starts = np.stack([np.ones_like(seeds), seeds >> 16, seeds & 0xFFFF], axis=1)
    stream = quantiles(seeds[-1:], (going_on + 1) * latents).reshape(-1, latents)[1:]
    rows = [
        np.hstack([u[:samples], words]),
        np.hstack([u[:images], made]),
        np.hstack([starts, quantiles(seeds, latents)]),
        np.hstack([np.zeros((going_on, 3), np.int64), stream]),
    ]
    lines = [" ".join(map(str, row)) for part in rows for row in part.tolist()]
    return "\n".join([f"{samples} {images} {draws}", *lines]) + "\n"


def verify(
    folder: Path,
    q: Quantised,
    *,
    name: str = "kaem",
    samples: int = 100_000,
    images: int = 1_000,
    draws: int = 2 * MOST_STREAMED,
) -> dict[str, Any]:
    """Compile the test bench with g++, run it on golden vectors, and test that draws of seeds are uniform."""
    gxx, place = tools.find("g++", "g++"), folder.resolve()
    strict = [
        "-std=c++11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-Wno-unknown-pragmas",
    ]
    design = [str(place / f"{name}_hls.cpp"), "-I", str(place)]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / "golden.txt").write_text(golden(q, samples, images, draws))
        (work / "draws.cpp").write_text(_DRAWS.substitute(name=name))
        tools.run([gxx, *strict, *design, str(place / f"{name}_tb.cpp"), "-o", "bench"], work)
        tools.run([gxx, *strict, *design, "draws.cpp", "-o", "draws"], work)
        said = tools.run(["./bench", "golden.txt"], work, codes=(0, 1)).decode()

        def draw(seeds: np.ndarray) -> np.ndarray:
            printed = tools.run(["./draws"], work, seeds.astype("<u4").tobytes())
            return np.frombuffer(printed, "<u2")

        uniformity = compared(draw, len(q.tables.words))
    done, prior, made, whole, drawn, different = (
        int(number) for number in re.findall(r"\d+", said)
    )
    return {
        "tool": tools.version(gxx),
        "prior_samples": done,
        "prior_mismatches": prior,
        "images": made,
        "image_mismatches": whole,
        "draws": drawn,
        "draw_mismatches": different,
        **uniformity,
    }
