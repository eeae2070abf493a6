"""The test bench of `kaem.export.hls`, its golden vectors, and running it."""

import re
import tempfile
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from . import tools
from .quantised import Quantised
from .tables import U_BITS

TEST_BENCH = Template("""\
/* ${name}_tb.cpp: compares the design with golden vectors; ends with 1 if a value differs, with 2 without vectors.
 *
 * The file (the first argument, or ${name}_golden.txt) has the numbers of samples and of images; for each sample
 * its quantiles and words; for each image its quantiles and data.
 */
#include <cstdio>

#include "${name}_hls.h"

static bool number(FILE *file, long &value)
{
    return std::fscanf(file, "%ld", &value) == 1;
}

/* Feeds one line of quantiles to a design, and counts what differs from the line; -1 if the file ends. */
template <typename T, typename Design> static long differing(FILE *file, Design design, int outputs)
{
    hls::stream<uint16_t> quantiles("quantiles");
    hls::stream<T> made("made");
    long value = 0, different = 0;
    for (int i = 0; i < ${guard}_LATENTS; i++) {
        if (!number(file, value))
            return -1;
        quantiles.write((uint16_t)value);
    }
    design(quantiles, made);
    for (int i = 0; i < outputs; i++) {
        if (!number(file, value))
            return -1;
        different += made.read() != value;
    }
    return made.empty() && quantiles.empty() ? different : different + 1;
}

int main(int arguments, char **argument)
{
    FILE *file = std::fopen(arguments > 1 ? argument[1] : "${name}_golden.txt", "r");
    long samples = 0, images = 0, prior = 0, whole = 0;
    if (file == NULL || !number(file, samples) || !number(file, images)) {
        std::printf("no golden vectors\\n");
        return 2;
    }
    for (long n = 0; n < samples + images; n++) {
        const long different = n < samples
            ? differing<uint16_t>(file, ${name}_prior, ${guard}_LATENTS)
            : differing<${pixel}>(file, ${name}_top, ${guard}_SIZE);
        if (different < 0) {
            std::printf("the golden vectors end early\\n");
            std::fclose(file);
            return 2;
        }
        (n < samples ? prior : whole) += different;
    }
    std::fclose(file);
    std::printf("prior samples %ld, mismatches %ld; images %ld, mismatches %ld\\n", samples, prior, images, whole);
    return prior + whole == 0 ? 0 : 1;
}
""")


def golden(q: Quantised, samples: int, images: int) -> str:
    """Vectors for the test bench: quantiles and words, then quantiles and data, a line for each."""
    u = np.random.default_rng(0).integers(
        0, 1 << U_BITS, (max(samples, images), len(q.tables.words))
    )
    words, made = q.tables.look_up(u[:samples]), q.generate(u[:images]).reshape(images, -1)
    rows = [*np.hstack([u[:samples], words]).tolist(), *np.hstack([u[:images], made]).tolist()]
    return "\n".join([f"{samples} {images}", *(" ".join(map(str, row)) for row in rows)]) + "\n"


def verify(
    folder: Path,
    q: Quantised,
    *,
    name: str = "kaem",
    samples: int = 100_000,
    images: int = 1_000,
) -> dict[str, Any]:
    """Compile the test bench with g++, and run it on golden vectors."""
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
    sources = [str(place / f"{name}_hls.cpp"), str(place / f"{name}_tb.cpp")]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / "golden.txt").write_text(golden(q, samples, images))
        tools.run([gxx, *strict, "-I", str(place), *sources, "-o", "bench"], work)
        said = tools.run(["./bench", "golden.txt"], work, codes=(0, 1)).decode()
    done, prior, made, whole = (int(number) for number in re.findall(r"\d+", said))
    return {
        "tool": tools.version(gxx),
        "prior_samples": done,
        "prior_mismatches": prior,
        "images": made,
        "image_mismatches": whole,
    }
