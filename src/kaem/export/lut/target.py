"""The prior alone: tables as an archive of NumPy, as memory files of Verilog, and as a header of C."""

import io
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import tools
from ..integer import IntegerTarget, Quantised
from ..integer.tables import U_BITS, Tables
from ..source import parts
from ..text import array, fill, identifier


class Lut(IntegerTarget):
    """Files for any machine that reads memories: `.npz`, `.mem` for `$readmemh`, and a header of C."""

    summary: ClassVar[str] = "the prior's inverse CDFs as tables: .npz, .mem and a C header"
    generator: ClassVar[bool] = False

    def files(self, subject: Quantised, name: str = "kaem") -> dict[str, bytes]:
        """Return `NAME_tables.npz`, `NAME_tables.mem` (one word a line) and `NAME_tables.h`."""
        tables = subject.tables
        return {
            f"{identifier(name)}_tables.npz": archive(tables),
            f"{name}_tables.mem": memory(tables).encode(),
            f"{name}_tables.h": header(subject, name).encode(),
        }

    def verify(
        self, folder: Path, subject: Quantised, name: str = "kaem", *, samples: int = 100_000
    ) -> dict[str, Any]:
        """Compile the header, and compare the words of all three files with `Tables.look_up`."""
        gcc, latents = tools.find("gcc"), len(subject.tables.words)
        u = np.random.default_rng(0).integers(0, 1 << U_BITS, (samples, latents))
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            (place / "bench.c").write_text(fill(__file__, "bench.c", name=name, latents=latents))
            command = [gcc, "-std=c99", "-O2", *tools.STRICT, "-I", str(folder.resolve())]
            tools.run([*command, "bench.c", "-o", "bench"], place)
            words = np.frombuffer(tools.run(["./bench"], place, u.astype("<u2").tobytes()), "<u2")
        with np.load(folder / f"{name}_tables.npz", allow_pickle=False) as read:
            archived = int(np.sum(read["words"] != subject.tables.words))
        lines = (folder / f"{name}_tables.mem").read_text().splitlines()
        memory_words = [int(line, 16) for line in lines if line[0] not in "/@"]
        expected = subject.tables.look_up(u)
        return {
            "tool": tools.version(gcc),
            "prior_samples": samples,
            "prior_mismatches": int(np.sum(words.reshape(u.shape) != expected)),
            "archive_mismatches": archived,
            "memory_mismatches": int(np.sum(memory_words != subject.tables.words.ravel())),
        }


def archive(tables: Tables) -> bytes:
    """Return everything in `Tables`, under the same names."""
    file = io.BytesIO()
    np.savez(file, **(vars(tables) | {"words": tables.words.astype(np.uint16)}))
    return file.getvalue()


def memory(tables: Tables) -> str:
    """Return words in hexadecimal, latent after latent, each with the address of its first."""
    digits = -(-tables.bits // 4)
    lines = [
        f"// {len(tables.words)} tables of {tables.entries} words of {tables.bits} bits: address = "
        f"latent * {tables.entries} + entry"
    ]
    for i, row in enumerate(tables.words.tolist()):
        lines.append(f"@{i * tables.entries:X} // latent {i}")
        lines += [f"{word:0{digits}x}" for word in row]
    return "\n".join(lines) + "\n"


def header(q: Quantised, name: str) -> str:
    """Return the tables and their look-up in C, or C++."""
    tables = q.tables
    return fill(
        __file__,
        "tables.h",
        parts(q, name),
        entries=tables.entries,
        bits=tables.bits,
        bytes=2 * tables.words.size,
        top=(1 << tables.bits) - 1,
        lo=array(f"{name}_lo", tables.lo.astype(np.float32), "float"),
        hi=array(f"{name}_hi", tables.hi.astype(np.float32), "float"),
    )
