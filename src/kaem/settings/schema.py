"""What can be set: sections of settings, derived from constructors, so that no default stands twice.

A section is the arguments of a constructor: of a dataclass (`training`, `optimiser`, ...), or of the
class that `kind` names in a registry (`prior`, `generator`, `learner`, ...). What a constructor gets
from elsewhere (keys, the shape of the data, other parts) is no setting.
"""

import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, brief

REQUIRED = inspect.Parameter.empty
# Arguments that are no settings, wherever a constructor has them, but for the sections in brackets.
_CONTEXT: dict[str, tuple[str, ...]] = {
    "key": ("data",),
    "data_shape": (),
    "coordinates": ("prior",),
    "prior": ("grid",),
    "generator": ("grid",),
    "encoder": (),
    "lens": (),
    "grid": (),
}


@dataclass(frozen=True)
class Field:
    """One setting: its type, and its default if it has one."""

    hint: Any
    default: Any = REQUIRED


def fields(constructor: Callable[..., Any], section: str) -> dict[str, Field]:
    """Return the settings that are arguments of a constructor, by name."""
    hints = typing.get_type_hints(constructor.__init__)
    found = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not variadic and section in _CONTEXT.get(name, (section,)):
            found[name] = Field(hints.get(name, Any), parameter.default)
    if section == "encoder":
        found.pop("latents", None)
    return found


def chosen(registry: Mapping[str, Any], kind: Any, where: str) -> Any:
    """Return what a registry has under the name `kind`, or say what it has."""
    if not isinstance(kind, str) or kind not in registry:
        raise UserError(f"{where}.kind must be one of {', '.join(registry)}, got {brief(kind)}.")
    return registry[kind]


def resolved(known: dict[str, Field], values: Any, where: str) -> dict[str, Any]:
    """Return the values of a section, coerced to their types, with defaults for what is not given."""
    if not isinstance(values, dict):
        raise UserError(f"{where} must be a table of settings, got {brief(values)}.")
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {where}.{near[0]}?" if near else f"known: {', '.join(known)}."
            raise UserError(f"there is no setting {where}.{name[:80]}; {hint}")
    found = {}
    for name, field in known.items():
        if name in values:
            found[name] = _coerce(values[name], field.hint, f"{where}.{name}")
        elif field.default is REQUIRED:
            raise UserError(
                f"{where}.{name} must be given: set it with `--set {where}.{name}=...`."
            )
        else:
            found[name] = field.default
    return found


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """Return `value` as the annotated type, from TOML or JSON."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    if type(None) in options and value in (None, "none"):  # TOML has no null
        return None
    for option in options:
        if option is Any:
            return value
        if typing.get_origin(option) is typing.Literal:
            if value in typing.get_args(option):
                return value
            known = ", ".join(map(str, typing.get_args(option)))
            raise UserError(f"{name} must be one of {known}, got {brief(value)}.")
        if option in (bool, int, str) and type(value) is option:
            if option is int and not -(2**63) <= value < 2**63:
                digits = int(value.bit_length() * math.log10(2)) + 1
                raise UserError(f"{name} must be below 2^63, got a number of {digits} digits.")
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                raise UserError(f"{name} must be a finite number, got {brief(value)}.")
            return number
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            inner = typing.get_args(option)
            if inner[-1] is ...:
                inner = inner[:1] * len(value)
            if len(inner) == len(value):
                return tuple(_coerce(v, t, name) for v, t in zip(value, inner, strict=True))
    names = " or ".join(_TYPES.get(o, str(o)) for o in (typing.get_origin(o) or o for o in options))
    raise UserError(f"{name} must be {names}, got {brief(value)}.")


_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list such as [1, 2]",
    type(None): "none",
}
