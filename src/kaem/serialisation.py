"""Objects as one `.safetensors` file: arrays in the body, structure in the header.

The header describes a tree of known classes by name with their plain fields, so a file is
read without running anything it contains: no pickle, no import by name. Rooms say which of their
classes files may hold (`know`); `kaem.register` adds those of users.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save as to_bytes

from .errors import UserError
from .files import parse_json, sealed, write_atomically
from .methods import assembled

FORMAT = "kaem-model-1"
_CLASSES: dict[str, type] = {}
_REGISTRIES: list[Mapping[str, type]] = []  # of kinds that grow: bases, priors, generators, models
# Other people's layers and functions that a file may name. Only such as compute and nothing else:
# a file says what is called with what, so that `jax.numpy.save` would write wherever it likes.
_LAYERS = """
    Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Dropout Embedding GroupNorm
    Identity Lambda LayerNorm Linear MLP PReLU RMSNorm Sequential
"""
_ACTIVATIONS = """
    celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid log_softmax mish relu relu6
    selu sigmoid silu soft_sign softmax softplus squareplus swish tanh
"""
_NUMPY = "abs arctan cos exp log1p ravel sin sinc square tanh"
_CLASSES |= {f"equinox.nn.{name}": getattr(eqx.nn, name) for name in _LAYERS.split()}
_FUNCTIONS: dict[str, Any] = {f"jax.nn.{n}": getattr(jax.nn, n) for n in _ACTIVATIONS.split()}
_FUNCTIONS |= {f"jax.numpy.{name}": getattr(jnp, name) for name in _NUMPY.split()}
_FUNCTIONS["equinox.nn.identity"] = signature(eqx.nn.MLP).parameters["final_activation"].default


def know(*classes: type | Mapping[str, type]) -> None:
    """Let model files hold instances of these classes, or of all that a registry will ever hold."""
    for known in classes:
        if isinstance(known, type):
            _CLASSES[known.__name__] = known
        else:
            _REGISTRIES.append(known)


def _known() -> dict[str, type]:
    """Classes by the name that files give them; those of other people have a name space of their own."""
    found = dict(_CLASSES)
    for cls in (cls for registry in _REGISTRIES for cls in registry.values()):
        own = cls.__module__.startswith(f"{__package__}.")
        found[cls.__name__ if own else f"user.{cls.__name__}"] = cls
    return found


def register(thing: Any) -> Any:
    """Make a class of your own, or a function that modules hold, known to model files by its name.

    Use it as a decorator, before saving and before loading: a file names what it holds, and is
    read without importing or running anything that was not registered. Whatever was registered
    under the same name before is replaced. Returns `thing`.
    """
    name = getattr(thing, "__name__", None)
    is_class = isinstance(thing, type)
    known = dataclasses.is_dataclass(thing) if is_class else callable(thing)
    if name in (None, "<lambda>") or not known:
        raise ValueError(
            f"what can be registered is an Equinox module (or another dataclass) or a function with a "
            f"name, got {thing!r}."
        )
    # A name space of their own: nothing of ours, now or later, goes by the same name.
    (_CLASSES if is_class else _FUNCTIONS)[f"user.{name}"] = thing
    return thing


def _describe(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if eqx.is_array(value):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_describe(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]}
    known = [label for label, cls in _known().items() if cls is type(value)]
    if known and dataclasses.is_dataclass(value):
        fields = {
            f.name: _describe(getattr(value, f.name), f"{name}.{f.name}", arrays)
            for f in dataclasses.fields(value)
        }
        return {"class": known[0], "fields": fields}
    functions = [label for label, function in _FUNCTIONS.items() if function is value]
    if functions:
        return {"function": functions[0]}
    raise UserError(
        f"a {type(value).__name__} at {name} cannot be saved in a model file; if it is a module or a "
        "function of your own, `kaem.register` it first, here and where the file is loaded."
    )


def _check_sizes(module: Any) -> None:
    """Check that arrays have the axes their annotations name, of equal size where equally named.

    Arithmetic would stretch an axis of size 1 to any other, and compute something else.
    """
    sizes: dict[str, int] = {}
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        for annotation in (field.type, *get_args(field.type)):
            axes = str(getattr(annotation, "dim_str", "...")).split()
            if not eqx.is_array(value) or any("*" in axis or "." in axis for axis in axes):
                continue
            expected = [int(a) if a.isdigit() else sizes.get(a, -1) for a in axes]
            found = value.shape
            if len(found) != len(axes) or any(
                e not in (-1, f) for e, f in zip(expected, found, strict=True)
            ):
                raise ValueError(
                    f"{type(module).__name__}.{field.name} has shape {found}, expected "
                    f"[{', '.join(axes)}]" + (f" with {sizes}" if sizes else "")
                )
            sizes |= {
                axis: size for axis, size in zip(axes, found, strict=True) if axis.isidentifier()
            }


def _restore(node: Any, read: Callable[[str], np.ndarray]) -> Any:
    match node:
        case {"array": str(name)}:
            return jnp.asarray(read(name))
        case {"tuple": list(items)}:
            return tuple(_restore(item, read) for item in items)
        case {"list": list(items)}:
            return [_restore(item, read) for item in items]
        case {"value": float(value)} if math.isnan(value):
            raise ValueError("a number that is NaN")
        case {"value": value} if value is None or isinstance(value, bool | int | float | str):
            return value
        case {"function": str(name)} if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        case {"class": str(name), "fields": dict(fields)} if name in _known():
            cls = _known()[name]
            known = {f.name: f.default for f in dataclasses.fields(cls)}
            older = {n: d for n, d in known.items() if n not in fields and d in (None, ())}
            if fields.keys() | older.keys() != known.keys():
                raise ValueError(f"{name} has fields {sorted(fields)}, not {sorted(known)}")
            values = {field: _restore(child, read) for field, child in fields.items()}
            module = assembled(cls, older | values)  # older: what came after the file was written
            if cls.__module__.startswith(f"{__package__}."):
                _check_sizes(module)
            for base in reversed(cls.__mro__):  # what the constructor would have refused
                if "__check_init__" in vars(base):
                    vars(base)["__check_init__"](module)
            return module
        case {"class": str(name)} | {"function": str(name)}:
            raise UserError(
                f"it holds a {name.removeprefix('user.')[:80]!r}, which kaem does not know. If it is yours, import the module that "
                "defines it and `kaem.register` it before loading; if it is from a newer version of kaem, "
                "update kaem."
            )
    raise ValueError(f"unknown entry {str(node)[:60]!r}")


def save(
    thing: Any,
    path: str | os.PathLike[str],
    config: dict[str, Any] | None = None,
    *,
    name: str = "model",
) -> None:
    """Write a model or a prior, as `name`, and the `config` that made it if given, to `path`."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": FORMAT, **thing.file_notes()}
    header["structure"] = json.dumps(_describe(thing.trainable(), name, arrays))
    if config is not None:
        header["config"] = json.dumps(config)
    write_atomically(path, sealed(to_bytes(arrays, header)))


def restore(structure: str, read: Callable[[str], np.ndarray]) -> Any:
    """Return what a header describes, with arrays from `read(name)`, or say what is wrong with it."""
    return _restore(parse_json(structure), read)
