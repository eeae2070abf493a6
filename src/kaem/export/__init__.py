"""Models as tables, C, HLS, Verilog and ONNX, verified against an integer reference."""

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomically
from ..lazy import callable_as, submodules
from ..loading import load
from .c import C
from .hls import Hls
from .integer import Quantised, quantise
from .lut import Lut
from .onnx import Onnx
from .target import Target
from .text import identifier
from .verilog import Verilog
from .writing import stale_files, write_together

__all__ = ["TARGETS", "Quantised", "Target", "export", "find", "quantise", "usual_folder"]

TARGETS: dict[str, Target] = {
    "lut": Lut(),
    "c": C(),
    "hls": Hls(),
    "verilog": Verilog(),
    "onnx": Onnx(),
}


def find(
    name: str, settings: Collection[str] = (), spelled: Mapping[str, str] | None = None
) -> Target:
    """Return the target of a name, if it takes all `settings`; `spelled` is how messages call these."""
    if name not in TARGETS:
        raise UserError(
            f"argument --to: invalid choice: {name!r} (choose from {', '.join(TARGETS)}). "
            "See `kaem export --help`."
        )
    target, spelled = TARGETS[name], spelled or {}
    for setting in settings:
        if setting not in target.settings:
            takers = ", ".join(other for other, t in TARGETS.items() if setting in t.settings)
            raise UserError(
                f"{spelled.get(setting, setting)} is for --to {takers or 'nothing'}; --to {name} "
                f"({target.summary}) does not take it: leave it out."
            )
    return target


def export(
    source: Any,
    target: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    verify: bool = False,
    name: str = "kaem",
    report: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Write a model for a target into a folder, all files or none, and verify them if asked to.

    **Arguments:** `source` is a model, a run, or the path of a run folder or a model file; `target` one of `TARGETS`;
    `folder` is `export/TARGET` in the run's folder, or beside the file, unless given; `name` is the prefix of files and
    functions; `settings` are those that the target takes. `report` is called with the results when the files are
    written, and again when they were verified.

    **Returns:** `results`, which `export.json` holds but for the verification, and `files`. What does not verify is a
    `UserError`.
    """
    aim = find(target, settings)
    identifier(name)
    model = source if hasattr(source, "readable") else load(getattr(source, "model_file", source))
    folder = usual_folder(source, target) if folder is None else Path(folder)
    model, settings = model.readable("export"), {**aim.settings, **settings}
    subject = aim.subject(model, **settings)
    contents = aim.files(subject, name)
    record: dict[str, Any] = {"target": target, "name": name}
    record |= aim.record(model, subject, settings) | {"files": list(contents)}
    stale = stale_files(folder, contents)
    contents["export.json"] = json.dumps(record, indent=1).encode()
    write_together(folder, contents, stale)
    results = record | {"verification": None}
    files = [str(folder / file) for file in contents]
    if report is not None:
        report({"results": results, "files": files})
    if verify:
        results["verification"] = aim.verify(folder, subject, name=name)
        files.append(str(folder / "verification.json"))
        write_atomically(Path(files[-1]), json.dumps(results["verification"], indent=1).encode())
        if report is not None:
            report({"results": results, "files": files})
        _judge(results["verification"], folder)
    return {"results": results, "files": files}


def usual_folder(source: Any, target: str) -> Path:
    """Return where a target usually goes: into a run's folder, or beside a model file."""
    if hasattr(source, "readable"):
        raise UserError(
            "a model that is in no file has no folder of its own; say which one to write into."
        )
    path = Path(getattr(source, "model_file", source))
    place = (path if path.is_dir() else path.parent) / "export"
    if place.is_symlink():
        raise UserError(
            f"{place} is a link, and nothing is written outside of the run: put a folder in its place, or "
            "say which folder to write into."
        )
    return place / target


def _judge(verification: dict[str, Any], folder: Path) -> None:
    """Raise what verification found wrong."""
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


submodules(__name__)
callable_as(__name__, export)
