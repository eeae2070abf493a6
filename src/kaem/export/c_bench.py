"""The C of `kaem.export.c`, compiled, compared with the integer reference, and timed."""

import tempfile
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from . import tools
from .quantised import Quantised
from .stream import MOST_STREAMED, compared, mixed_seeds
from .tables import U_BITS
from .text import sizes

_BENCH = Template("""\
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "${name}.h"

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

int main(int arguments, char **argument)
{
    uint16_t u[${guard}_LATENTS], words[${guard}_LATENTS];
    static ${pixel} image[${guard}_SIZE];
    uint32_t seed = 1;
    ${name}_stream stream;

    ${name}_stream_start(&stream, seed);
    if (arguments != 2)
        return 1;
    if (strcmp(argument[1], "latents") == 0) {
        while (fread(u, sizeof u, 1, stdin) == 1) {
            ${name}_latents(u, words);
            fwrite(words, sizeof words, 1, stdout);
        }
    } else if (strcmp(argument[1], "images") == 0) {
        while (fread(u, sizeof u, 1, stdin) == 1) {
            ${name}_generate(u, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    } else if (strcmp(argument[1], "samples") == 0) {
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_sample(seed, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    } else if (strcmp(argument[1], "quantiles") == 0) {
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_quantiles(seed, u);
            fwrite(u, sizeof u, 1, stdout);
        }
    } else if (strcmp(argument[1], "stream") == 0) { /* of the seed 1, as many as there are numbers */
        while (fread(&seed, sizeof seed, 1, stdin) == 1) {
            ${name}_stream_sample(&stream, image);
            fwrite(image, sizeof image, 1, stdout);
        }
    } else { /* the fastest of eight, of a thirtieth of a second each */
        double best = 1e9;
        for (int round = 0; round < 8; round++) {
            int made = 0;
            const double start = seconds();
            while (seconds() - start < 0.03)
                for (int i = 0; i < 10; i++, made++)
                    ${name}_sample(seed++, image);
            const double each = 1e6 * (seconds() - start) / made;
            best = each < best ? each : best;
        }
        printf("%.3f", best);
    }
    return 0;
}
""")

_FLOAT = 1e-4  # beyond what rounding in float32 makes of a generator that bends much


def verify(
    folder: Path,
    q: Quantised,
    *,
    name: str = "kaem",
    samples: int = 100_000,
    images: int = 1_000,
    model: Any = None,
) -> dict[str, Any]:
    """Compile what `files` wrote, compare it with the reference, and time it.

    With the model, its float twin is compared as well.
    """
    gcc, gxx = tools.find("gcc", "gcc"), tools.find("g++", "g++")
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(folder.resolve())]
    sanitised = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = str(folder.resolve() / f"{name}.c")
    rng = np.random.default_rng(0)
    latents = len(q.tables.words)
    u = rng.integers(0, 1 << U_BITS, (max(samples, images), latents))
    seeds = mixed_seeds(images)
    found: dict[str, Any] = {"tool": tools.version(gcc), "tool_cpp": tools.version(gxx)}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "bench.c").write_text(_BENCH.substitute(sizes(q, name)))

        def build(compiler: str, program: str, options: list[str]) -> None:
            tools.run([compiler, *options, *strict, "bench.c", source, "-o", program], place)

        def printed(program: str, what: str, given: np.ndarray, kind: str) -> np.ndarray:
            return np.frombuffer(tools.run([program, what], place, given.tobytes()), kind)

        def mismatches(program: str, samples: int, images: int) -> dict[str, int]:
            def differing(what: str, given: np.ndarray, expected: np.ndarray, kind: str) -> int:
                made = printed(program, what, given, kind)
                return int(np.sum(made.reshape(expected.shape) != expected))

            pixel = "<u1" if q.sigmoid is not None else "<u2"
            words, bits = q.tables.look_up(u[:samples]), u.astype("<u2")
            made, few = q.generate(u[:images]), seeds[:images].astype("<u4")
            return {
                "prior_mismatches": differing("latents", bits[:samples], words, "<u2"),
                "image_mismatches": differing("images", bits[:images], made, pixel),
                "sample_mismatches": differing("samples", few, q.sample(few), pixel),
                "stream_mismatches": differing(
                    "stream", few[:MOST_STREAMED], q.stream(1, min(images, MOST_STREAMED)), pixel
                ),
            }

        build(gcc, "./o2", ["-std=c99", "-O2"])
        build(gcc, "./o3", ["-std=c99", "-O3", "-march=native"])
        found |= {"prior_samples": samples, "images": images, **mismatches("./o3", samples, images)}
        found |= compared(
            lambda seeds: printed("./o3", "quantiles", seeds.astype("<u4"), "<u2"), latents
        )
        for compiler, program, standard in ((gcc, "./c", "c99"), (gxx, "./cpp", "c++11")):
            build(compiler, program, [f"-std={standard}", *sanitised])
            few = mismatches(program, min(samples, 1_000), min(images, 20))
            found[f"sanitised_mismatches_{program[2:]}"] = sum(few.values())
        for program in ("./o2", "./o3"):
            found[f"microseconds_{program[2:]}"] = float(tools.run([program, "time"], place))
    if model is not None:
        from .c_float import compared_draws, largest_difference

        found["float_difference"] = largest_difference(folder, model, name, images)
        found["float_mismatches"] = int(found["float_difference"] > _FLOAT)
        found |= compared_draws(folder, model, name, images)
    return found
