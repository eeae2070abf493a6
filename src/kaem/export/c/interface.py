"""What the model in integers and its float twin share in C: a header, functions that draw, and a test bench for both.

An interface has a prefix of functions, a guard of macros, the type `number` of quantiles and the type `pixel` of data.
"""

from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from .. import tools
from ..source import drawing, state
from ..text import fill

_MODE = Template("""\
    if (strcmp(argument[1], "${mode}") == 0)
        while (fread(${given}, sizeof ${array}, 1, stdin) == 1) {
            ${call};
            fwrite(${made}, sizeof ${made}, 1, stdout);
        }
""")

# What is read for each line of work, the call, and what is written; a stream is that of the seed 1.
_MODES = {
    "latents": ("u", "latents(u, latents)", "latents"),
    "images": ("u", "generate(u, image)", "image"),
    "samples": ("seed", "sample(seed, image)", "image"),
    "quantiles": ("seed", "quantiles(seed, u)", "u"),
    "stream": ("seed", "stream_sample(&stream, image)", "image"),
}


def header(values: dict[str, Any]) -> str:
    """Return the header of an interface."""
    return fill(__file__, "header.h", values, state=state(values["prefix"]))


def sampling(values: dict[str, Any]) -> str:
    """Return the functions that draw, from streams and from seeds."""
    return fill(__file__, "sampling.c", values, stream=drawing(values["prefix"]))


class Bench:
    """Programs that call the functions of an interface, built in `work` from the sources in `folder`."""

    def __init__(self, folder: Path, work: Path, values: dict[str, Any]) -> None:
        self.work, self.prefix, self.folder = work, values["prefix"], str(folder.resolve())
        modes = ""
        for mode, (given, call, made) in _MODES.items():
            call = f"{self.prefix}_{call}"
            address = "&seed" if given == "seed" else given
            modes += _MODE.substitute(mode=mode, given=address, array=given, call=call, made=made)
        (work / f"{self.prefix}_bench.c").write_text(fill(__file__, "bench.c", values, modes=modes))

    def build(self, compiler: str, program: str, *options: str) -> None:
        """Compile a program, without a warning."""
        sources = [f"{self.prefix}_bench.c", f"{self.folder}/{self.prefix}.c", "-lm"]
        command = [compiler, *options, *tools.STRICT, "-I", self.folder, *sources]
        tools.run([*command, "-o", program], self.work)

    def printed(self, program: str, mode: str, given: np.ndarray, kind: str) -> np.ndarray:
        """Return what a program makes of `given`, as numbers of a `kind`."""
        return np.frombuffer(tools.run([f"./{program}", mode], self.work, given.tobytes()), kind)

    def microseconds(self, program: str) -> float:
        """Return the time of one sample."""
        return float(tools.run([f"./{program}", "time"], self.work))
