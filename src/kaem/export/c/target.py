"""The model in C99, or C++: integers alone, no heap, no library but `stdint.h` and `string.h`."""

from pathlib import Path
from string import Template
from typing import Any, ClassVar

from ...data.sheets import is_image
from ..integer import IntegerTarget, Quantised
from ..source import chained, layers_text, parts, sizes
from ..text import array, fill, identifier
from . import bench, twin
from .interface import header, sampling
from .layers import layer_text

_ABOUT = Template("""\
in integers; ${bytes} bytes of tables and weights.
 *
 * A sample takes one pass. ${latents} quantiles of 16 bits (${Q} coordinates, ${P} each) become
 * ${size} ${unit} of shape ${shape}. All functions are reentrant and use the stack alone.""")


_HELPERS = {
    "choose": Template("""\
/* Both are read before one is taken: a branch would keep compilers from vectorising. */
static inline int32_t ${name}_choose(int which, int32_t first, int32_t second)
{
    return which ? first : second;
}

"""),
    "scale_32": Template("""\
/* The same in 32 bits, for compilers to vectorise: the lower 12 bits of the sum are multiplied apart. */
static inline int32_t ${name}_scale_32(int32_t sum, int32_t multiplier, int shift, int32_t low, int32_t high)
{
    const int32_t lower = ((sum & 4095) * multiplier) >> 12;
    const int32_t y = ((sum >> 12) * multiplier + lower + (1 << (shift - 13))) >> (shift - 12);
    return y < low ? low : y > high ? high : y;
}

"""),
}


_BUFFER = Template("    ${kind} ${to}[${size}];\n")


class C(IntegerTarget):
    """C99 in integers, with an example, and where it can be written down, a twin in floating point."""

    summary: ClassVar[str] = "C99 without dependencies, in integers and in floats"

    def files(self, subject: Quantised, name: str = "kaem") -> dict[str, bytes]:
        """Return `NAME.h`, `NAME.c` and `NAME_example.c`, and `NAME_float.h` and `NAME_float.c` of a model."""
        values = interface(subject, identifier(name))
        text = {
            f"{name}.h": header(values),
            f"{name}.c": _source(subject, name),
            f"{name}_example.c": _example(subject, name),
        }
        if subject.model is not None and twin.missing(subject.model) is None:
            text |= twin.files(subject.model, name)
        return {file: content.encode() for file, content in text.items()}

    def record(self, model: Any, subject: Any, settings: Any) -> dict[str, Any]:
        missing = twin.missing(model)
        note = {} if missing is None else {"note": missing}
        return super().record(model, subject, settings) | note

    def verify(
        self,
        folder: Path,
        subject: Quantised,
        name: str = "kaem",
        *,
        samples: int = 100_000,
        images: int = 1_000,
    ) -> dict[str, Any]:
        """Compile what `files` made, compare it with the reference, and time it; the twin as well."""
        values = interface(subject, name)
        results = bench.verify(folder, subject, values, samples, images)
        if subject.model is not None and twin.missing(subject.model) is None:
            results |= bench.verify_twin(folder, subject.model, name, images)
        return results


def interface(q: Quantised, name: str) -> dict[str, Any]:
    """Return what the header, the functions that draw, and the test bench say of a model."""
    values = sizes(q, name)
    return values | {
        "prefix": name,
        "number": "uint16_t",
        "latent": "words",
        "about": _ABOUT.substitute(values),
        "to_latents": "Quantiles u / 65536 to the words of latents",
        "of_seeds": "A seed to quantiles, and to data: equal seeds give equal data, on every machine, and seeds "
        "may simply be counted",
        "draw": f"\n        u[i] = (uint16_t)({name}_draw(stream) >> 16);",
    }


def _source(q: Quantised, name: str) -> str:
    layers, sigmoid = layers_text(q, name, layer_text), ""
    buffers, calls = chained(q, name, _BUFFER)
    if q.sigmoid is not None:
        sigmoid = "/* Codes to bytes. */\n" + array(f"{name}_sigmoid", q.sigmoid) + "\n"
        calls += f"    for (int i = 0; i < {name.upper()}_SIZE; i++)\n"
        calls += f"        image[i] = {name}_sigmoid[x_{len(q.layers)}[i]];\n"
    return fill(
        __file__,
        "source.c",
        parts(q, name),
        layers=layers,
        sampling=sampling(interface(q, name)),
        helpers="".join(
            text.substitute(name=name)
            for function, text in _HELPERS.items()
            if f"{name}_{function}(" in layers
        ),
        sigmoid=sigmoid,
        buffers=buffers,
        calls=calls,
    )


def _example(q: Quantised, name: str) -> str:
    shape, guard, small = q.data_shape, name.upper(), q.sigmoid is not None
    value = f"{guard}_LOW + ({guard}_HIGH - {guard}_LOW) * image[i] / 65535"
    show = f'"%g\\n", {"image[i] / 255.0" if small else value}'
    format, file, start = "numbers, one on a line", "sample.txt", ""
    if is_image(shape):
        magic, kind = ("P2", "PGM") if shape[2] == 1 else ("P3", "PPM")
        most, row = 255 if small else 65535, shape[1] * shape[2]
        start = f'    printf("{magic}\\n%d %d\\n%d\\n", {shape[1]}, {shape[0]}, {most});\n'
        show = f"\"%d%c\", image[i], i % {row} == {row - 1} ? '\\n' : ' '"
        format, file = f"a {kind} image", f"sample.{kind.lower()}"
    values = {"format": format, "file": file, "start": start, "print": show}
    return fill(__file__, "example.c", sizes(q, name) | values)
