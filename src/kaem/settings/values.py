"""Where values of settings come from: presets (TOML), files, and `--set section.name=value`."""

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UNREADABLE, UserError
from ..files import parse_json, read_text
from .migrate import became, migrated
from .settings import PARTS, allowed

_MAX_TOML = (
    2**16
)  # bytes; the time to read tables within tables grows with the square of their number
# Presets by name are TOML files of the package, or tables of settings.
_FOLDER = resources.files("kaem.settings.presets")
_NAMES = sorted(path.name[:-5] for path in _FOLDER.iterdir() if path.name.endswith(".toml"))
PRESETS: dict[str, Any] = {name: _FOLDER / f"{name}.toml" for name in _NAMES}


def read_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset, or say which there are, and what became of an old one."""
    if name not in PRESETS:
        if told := became(name):
            raise UserError(told)
        near = difflib.get_close_matches(name, PRESETS, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(
            f"{name!r} is neither a preset nor an existing path.{hint} Presets: {', '.join(PRESETS)}."
        )
    found = PRESETS[name]
    return dict(found) if isinstance(found, dict) else tomllib.loads(found.read_text("utf8"))


def read_file(path: Path) -> dict[str, Any]:
    """Return settings of a `.toml` file, or of a run's `.json`."""
    try:
        if path.suffix == ".json":
            values = parse_json(read_text(path))
        else:
            values = tomllib.loads(read_text(path, _MAX_TOML))
    except UNREADABLE as error:
        raise UserError(f"the configuration {path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a JSON object, got {type(values).__name__}.")
    recorded = values.get("settings")
    return migrated(recorded, recorded=True) if isinstance(recorded, dict) else values


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return settings `base`, overridden by those of `over`.

    Where a section becomes one of another kind, what that kind does not have is dropped.
    """
    base, over = migrated(base), migrated(over)
    merged = dict(base)
    for section, entries in over.items():
        old = merged.get(section, {})
        if not (isinstance(old, dict) and isinstance(entries, dict)):
            merged[section] = entries
            continue
        kind: Any = entries.get("kind", old.get("kind"))
        if kind != old.get("kind") and section in ("model", *PARTS):
            known = allowed(section, kind, optional=section in ("encoder", "lens"))
            old = {name: value for name, value in old.items() if name in known}
        merged[section] = old | entries
    return merged


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Apply one `section.name=value`, the value in TOML or, failing that, as text."""
    name, equals, text = assignment.partition("=")
    path = name.strip().split(".")
    if not equals or len(path) != 2 or not all(path):
        raise UserError(f"--set takes section.name=value, got {assignment!r}.")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except UNREADABLE:
        value = text.strip()
    return merge(values, {path[0]: {path[1]: value}})
