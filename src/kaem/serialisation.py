"""Models as one `.safetensors` file: arrays in the body, structure in the header.

The header describes a tree of known classes by name with their plain fields, so a file is
read without running anything it contains: no pickle, no import by name.
"""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from .baselines import CLASSES
from .bases import BASES, ClosedForms, Functions
from .errors import UNREADABLE, UserError
from .files import write_atomically
from .generators import GENERATORS
from .model import KAEM, AbstractModel
from .priors import PRIORS, AbstractPrior

FORMAT = "kaem-model-1"
_KNOWN: tuple[type, ...] = (
    KAEM,
    Functions,
    ClosedForms,
    *PRIORS.values(),
    *BASES.values(),
    *GENERATORS.values(),
    *CLASSES,
)
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in _KNOWN}
# Other people's layers and functions that a file may name. Only such as compute and nothing else:
# a file says what is called with what, so that `jax.numpy.save` would write wherever it likes.
_LAYERS = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "Identity",
    "Lambda",
    "LayerNorm",
    "Linear",
    "MLP",
    "PReLU",
    "RMSNorm",
    "Sequential",
]
_CLASSES |= {f"equinox.nn.{name}": getattr(eqx.nn, name) for name in _LAYERS}
_ACTIVATIONS = [
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "squareplus",
    "swish",
    "tanh",
]
_FUNCTIONS: dict[str, Any] = {f"jax.nn.{name}": getattr(jax.nn, name) for name in _ACTIVATIONS}
_FUNCTIONS |= {
    f"jax.numpy.{name}": getattr(jnp, name)
    for name in ["abs", "arctan", "cos", "exp", "log1p", "ravel", "sin", "sinc", "square", "tanh"]
}
_FUNCTIONS["equinox.nn.identity"] = signature(eqx.nn.MLP).parameters["final_activation"].default


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
    known = [label for label, cls in _CLASSES.items() if cls is type(value)]
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


def _restore(node: Any, read: Callable[[str], np.ndarray]) -> Any:
    match node:
        case {"array": str(name)}:
            return jnp.asarray(read(name))
        case {"tuple": list(items)}:
            return tuple(_restore(item, read) for item in items)
        case {"list": list(items)}:
            return [_restore(item, read) for item in items]
        case {"value": value} if value is None or isinstance(value, bool | int | float | str):
            return value
        case {"function": str(name)} if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        case {"class": str(name), "fields": dict(fields)} if name in _CLASSES:
            cls = _CLASSES[name]
            known = {f.name: f.default for f in dataclasses.fields(cls)}
            older = {n: d for n, d in known.items() if n not in fields and d is None}
            if fields.keys() | older.keys() != known.keys():
                raise ValueError(f"{name} has fields {sorted(fields)}, not {sorted(known)}")
            module: Any = object.__new__(cls)
            for field, default in older.items():  # that came after the file was written
                object.__setattr__(module, field, default)
            for field, child in fields.items():
                object.__setattr__(module, field, _restore(child, read))
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
    model: AbstractModel | AbstractPrior,
    path: str | os.PathLike[str],
    config: dict[str, Any] | None = None,
) -> None:
    """Write a model or a prior (and, if given, the `config` that made it) to `path`."""
    arrays: dict[str, np.ndarray] = {}
    if isinstance(model, AbstractPrior):
        structure = _describe(model.uncache(), "prior", arrays)
    else:
        structure = _describe(model.trainable(), "model", arrays)
    header = {"format": FORMAT, "structure": json.dumps(structure)}
    prior = getattr(model, "prior", model)
    if isinstance(prior, AbstractPrior) and prior.inverse_transform == "exact":
        header["cells"] = str(prior.refined().cells)  # found once, not at every loading
    if config is not None:
        header["config"] = json.dumps(config)
    write_atomically(path, _sorted_header(to_bytes(arrays, header)))


def _sorted_header(data: bytes) -> bytes:
    """The same file with its header's keys in order: equal models are equal bytes."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def _model_file(path: str | os.PathLike[str]) -> Path:
    return Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)


def read(path: str | os.PathLike[str]) -> Any:
    """A model or a prior as it was saved: a `.safetensors` file, or the model of a run folder."""
    path = _model_file(path)
    if not path.is_file():
        raise UserError(f"there is no model at {path}; give a run folder or a .safetensors file.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise UserError(
                    f"it is a safetensors file but not a KAEM model (format {header.get('format')!r}, "
                    f"expected {FORMAT!r})."
                )
            model = _restore(json.loads(header["structure"]), file.get_tensor)
        if not isinstance(model, AbstractModel | AbstractPrior):
            raise ValueError(f"it holds a {type(model).__name__}")
        _check(model)
    except Exception as error:  # an altered file can make anything fail: what it says is untrusted
        if isinstance(error, UserError):
            raise UserError(f"{path} cannot be read as a model: {error}") from error
        of_run = path.name == "model.safetensors" and (path.parent / "config.json").is_file()
        remedy = (
            f"`kaem train WHAT --out {path.parent} --resume` writes it anew from the run's newest "
            "checkpoint"
            if of_run
            else "Copy it again from where it came from, or save it again"
        )
        raise UserError(
            f"{path} is not a readable KAEM model ({type(error).__name__}: {error}). It may be "
            f"truncated or altered. {remedy}."
        ) from error
    return model


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings, and what else was recorded with them, in the header of a model file."""
    try:
        with safe_open(path, framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get("config", "{}"))
    except (SafetensorError, *UNREADABLE) as error:
        raise UserError(f"{path} has no readable header ({error}).") from error
    return found if isinstance(found, dict) else {}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model, ready to sample: a KAEM with its tables refined and cached, or a rival.

    `path` is a `.safetensors` file or a run folder.
    """
    model = read(path)
    if isinstance(model, AbstractPrior):
        raise UserError(
            f"{path} holds a prior without a generator: read it with `kaem.load_prior`, or train a "
            "generator on it with `kaem train WHAT --prior-from`."
        )
    cells = _recorded_cells(path, model)
    return model.prepared() if cells is None else model.prepared(cells=cells)


def _recorded_cells(path: str | os.PathLike[str], model: Any) -> int | None:
    """How many cells the tables of this file need, if it says so and can be right."""
    prior = getattr(model, "prior", model)
    if not isinstance(prior, AbstractPrior) or prior.inverse_transform != "exact":
        return None
    with safe_open(_model_file(path), framework="numpy") as file:
        text = (file.metadata() or {}).get("cells", "")
    possible = {str(c): c for c in prior.possible_cells()}
    return possible.get(text)


def read_prior(path: str | os.PathLike[str]) -> AbstractPrior:
    """The prior of a run folder, a model file or a prior file, as it was saved."""
    found = read(path)
    prior = found if isinstance(found, AbstractPrior) else getattr(found, "prior", None)
    if not isinstance(prior, AbstractPrior):
        raise UserError(
            f"{path} holds a {type(found).__name__}, which has no prior of one-dimensional densities; "
            "give a KAEM, or a file that `prior.save` wrote."
        )
    return prior


def load_prior(path: str | os.PathLike[str]) -> AbstractPrior:
    """Read a prior, ready to sample, from a run folder, a model file or a prior file."""
    prior = read_prior(path)
    cells = _recorded_cells(path, prior)
    if cells is not None:
        return prior.with_cells(cells).cache()
    return (prior.refined() if prior.inverse_transform == "exact" else prior).cache()


def _check(model: AbstractModel | AbstractPrior) -> None:
    """That the pieces fit together and hold numbers, before anything is computed with them."""
    made = eqx.filter_eval_shape(lambda m, key: m.sample(key, 1), model, jax.random.key(0))
    shape = model.shape if isinstance(model, AbstractPrior) else model.data_shape
    if math.prod(made.shape[1:]) != math.prod(shape):
        raise ValueError(f"it generates shape {made.shape[1:]}, not {shape}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_array)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"{leaf.dtype} numbers in {jax.tree_util.keystr(path)}, not floats")
        if not np.isfinite(leaf).all():
            raise ValueError(f"non-finite numbers in {jax.tree_util.keystr(path)}")
