"""`kaem export RUN --to TARGET`: a model as tables, C, HLS, Verilog or ONNX."""

import argparse
import contextlib
import errno
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import checked_folder

TARGETS = {
    "lut": "the prior's inverse CDFs as tables: .npz, .mem and a C header",
    "c": "C99 without dependencies, in integers and in floats",
    "hls": "C++ for Vitis HLS, with a test bench and a script",
    "verilog": "a sampler of the prior, with --generator the whole model",
    "onnx": "graphs from quantiles and from latents to data",
}


_DEFAULTS = {
    "entries": 1024,
    "bits": 16,
    "interpolate": True,
    "addressing": "uniform",
    "inner_bits": 16,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder or a .safetensors model")
    parser.add_argument(
        "--to", required=True, choices=tuple(TARGETS), help=", ".join(TARGETS), metavar="TARGET"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="default RUN/export/TARGET")
    parser.add_argument("--verify", action="store_true", help="compile and run it, and compare")
    parser.add_argument("--name", default="kaem", help="prefix of files and functions (kaem)")
    parser.add_argument(
        "--entries",
        type=int,
        default=_DEFAULTS["entries"],
        metavar="N",
        help="of a table, a power of two (1024)",
    )
    parser.add_argument(
        "--bits",
        type=int,
        default=_DEFAULTS["bits"],
        metavar="N",
        help="of a table's words, 4 to 16 (16)",
    )
    parser.add_argument(
        "--nearest", action="store_true", help="read tables to the nearest entry, not linearly"
    )
    parser.add_argument(
        "--tails", action="store_true", help="spend half of a table's entries on its tails"
    )
    parser.add_argument(
        "--inner-bits", type=int, default=_DEFAULTS["inner_bits"], metavar="N",
        help="of inner Kolmogorov-Arnold layers (16); the last one, and convolutions, have 8",
    )  # fmt: skip
    parser.add_argument(
        "--generator", action="store_true", help="of --to verilog: the generator too"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    from ..export.text import identifier

    identifier(options.name)
    if options.to == "onnx" and _settings(options) != _DEFAULTS:
        raise UserError(
            "--to onnx is in floating point: --entries, --bits, --nearest, --tails and --inner-bits are "
            "for targets in integers; leave them out."
        )
    if options.generator and options.to != "verilog":
        raise UserError(f"--generator is for --to verilog; --to {options.to} has it or needs none.")

    from ..export.quantised import exportable
    from ..files import write_atomically
    from ..serialisation import load

    source = Path(options.run)
    model = exportable(load(source))
    place = source if source.is_dir() else source.parent
    folder = checked_folder(
        Path(options.output) if options.output else place / "export" / options.to
    )
    target = importlib.import_module(f"..export.{options.to}", __package__)
    record: dict[str, Any] = {"target": options.to, "name": options.name}
    extra = {"generator": options.generator} if options.to == "verilog" else {}
    if options.to == "onnx":
        subject, quantised = model, None
    else:
        subject = quantised = _quantised(model, options)
        extra |= {"model": model} if options.to == "c" else {}
    made = target.files(subject, options.name, **extra)
    if quantised is not None:
        from ..export.quality import quality

        record |= {"settings": _settings(options), "quality": quality(model, quantised)}
    record["files"] = list(made)
    stale = _stale(folder, made)
    made["export.json"] = json.dumps(record, indent=1).encode()
    _write_together(folder, made, stale)
    files = [str(folder / name) for name in made]
    if not options.json:
        print(f"wrote {len(files)} files into {folder}")
        _show(record.get("quality", {}))
    verification = None
    if options.verify:
        print("verifying: compiling and running what was written", file=sys.stderr)
        kept = {"model": model} if options.to == "c" else {}
        verification = target.verify(folder, subject, name=options.name, **kept)
        content = json.dumps(verification, indent=1).encode()
        write_atomically(folder / "verification.json", content)
        files.append(str(folder / "verification.json"))
        if not options.json:
            _show(verification)
        wrong, uneven = (
            {name: value for name, value in verification.items() if kind in name and value}
            for kind in ("mismatches", "uniformity_failures")
        )
        missing = verification.get("prior_missing") or verification.get("top_missing")
        if missing:
            raise UserError(
                f"it was not simulated: install the package {missing}, and verify again. What was "
                f"written is in {folder}."
            )
        if wrong:
            raise UserError(
                f"what was written does not equal the reference: {wrong}. See {folder / 'verification.json'}; "
                "do not use it, and please report this."
            )
        if uneven:
            raise UserError(
                f"draws from counted seeds are not uniform, for so many latents: {uneven}. See "
                f"{folder / 'verification.json'}; do not use its seeds, give quantiles of your own instead, and please "
                "report this."
            )
    return {"results": record | {"verification": verification}, "files": files}


def _write_together(folder: Path, made: dict[str, bytes], stale: list[str]) -> None:
    """Write all files or none: into a folder inside, on the same file system, from which they are then moved.

    What they replace, and what is stale, is moved away first, and back if anything fails.
    """
    from ..files import not_written

    parents = [part for part in (folder, *folder.parents) if not part.exists()]
    moved: list[tuple[Path, Path]] = []
    work = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".export.", dir=folder))
        (work / "new").mkdir()
        (work / "old").mkdir()
        for name, content in made.items():
            with open(work / "new" / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        before = [name for name in (*made, *stale) if os.path.lexists(folder / name)]
        moves = [(folder / name, work / "old" / name) for name in before]
        moves += [(work / "new" / name, folder / name) for name in made]
        for source, place in moves:
            if source.is_dir() and not source.is_symlink():
                raise IsADirectoryError(errno.EISDIR, f"{source} is a folder")
            os.rename(source, place)
            moved.append((source, place))
    except BaseException as error:
        for source, place in reversed(moved):
            os.rename(place, source)
        if work != folder:
            shutil.rmtree(work, ignore_errors=True)
        for part in parents:
            with contextlib.suppress(OSError):
                part.rmdir()
        if isinstance(error, OSError):
            raise not_written(folder, error) from error
        raise
    shutil.rmtree(work, ignore_errors=True)


def _stale(folder: Path, made: dict[str, bytes]) -> list[str]:
    """What an earlier export left that this one does not write again."""
    try:
        kept = json.loads((folder / "export.json").read_text("utf8"))["files"]
        names = [name for name in kept if isinstance(name, str) and Path(name).name == name]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    stale = {*names, "verification.json"} - {*made, "export.json"}
    return sorted(name for name in stale if (folder / name).is_file())


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "entries": options.entries,
        "bits": options.bits,
        "interpolate": not options.nearest,
        "addressing": "tails" if options.tails else "uniform",
        "inner_bits": options.inner_bits,
    }


def _quantised(model: Any, options: argparse.Namespace) -> Any:
    from ..export import quantise

    try:
        whole = options.to in ("c", "hls") or options.generator
        return quantise(model, **_settings(options), generator=whole)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def _show(values: dict[str, Any], prefix: str = "") -> None:
    """One line for each number."""
    for name, value in values.items():
        if isinstance(value, dict):
            _show(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            print(f"{prefix}{name} = {value:.5g}")
        elif not isinstance(value, list):
            print(f"{prefix}{name} = {value}")
