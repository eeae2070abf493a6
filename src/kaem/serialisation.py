"""Models as one `.safetensors` file: arrays in the body, structure in the header.

The header describes a tree of known classes by name with their plain fields, so a file is
read without running anything it contains: no pickle, no import by name.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import struct
from collections.abc import Callable
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
from .errors import UserError
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
_CLASSES = {cls.__name__: cls for cls in _KNOWN}


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write beside, flush to disk, rename: at any moment the file is the old one or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise not_written(path, error) from error


def not_written(path: str | os.PathLike[str], error: OSError) -> UserError:
    """What to say of a file or folder that is as it was before, because it could not be written."""
    advice = "see to that or choose another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some space or choose another place"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "choose another place or change its permissions"
    return UserError(
        f"could not write {path}: {error.strerror or error}. Nothing that was there before is "
        f"changed; {advice}, and try again."
    )


def _describe(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if eqx.is_array(value):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if type(value).__name__ in _CLASSES and dataclasses.is_dataclass(value):
        fields = {
            f.name: _describe(getattr(value, f.name), f"{name}.{f.name}", arrays)
            for f in dataclasses.fields(value)
        }
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_describe(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise UserError(f"a {type(value).__name__} at {name} cannot be saved in a model file.")


def _restore(node: Any, read: Callable[[str], np.ndarray]) -> Any:
    match node:
        case {"array": str(name)}:
            return jnp.asarray(read(name))
        case {"tuple": list(items)}:
            return tuple(_restore(item, read) for item in items)
        case {"value": value} if value is None or isinstance(value, bool | int | float | str):
            return value
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
            return module
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
    if config is not None:
        header["config"] = json.dumps(config)
    write_atomically(path, _sorted_header(to_bytes(arrays, header)))


def _sorted_header(data: bytes) -> bytes:
    """The same file with its header's keys in order: equal models are equal bytes."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def read(path: str | os.PathLike[str]) -> Any:
    """A model or a prior as it was saved: a `.safetensors` file, or the model of a run folder."""
    path = Path(path)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise UserError(f"there is no model at {path}; give a run folder or a .safetensors file.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise UserError(
                    f"{path} is a safetensors file but not a KAEM model "
                    f"(format {header.get('format')!r}, expected {FORMAT!r})."
                )
            model = _restore(json.loads(header["structure"]), file.get_tensor)
        if not isinstance(model, AbstractModel | AbstractPrior):
            raise ValueError(f"it holds a {type(model).__name__}")
        _check(model)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is not a readable KAEM model ({type(error).__name__}: {error}). It may be "
            "truncated or altered. `kaem train WHAT --out RUN --resume` writes it anew from the "
            "run's newest checkpoint."
        ) from error
    return model


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
    return model.prepared()


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
    return (prior.refined() if prior.inverse_transform == "exact" else prior).cache()


def _check(model: AbstractModel | AbstractPrior) -> None:
    """That the pieces fit together and hold numbers, before anything is computed with them."""
    made = jax.eval_shape(lambda m, key: m.sample(key, 1), model, jax.random.key(0))
    shape = model.shape if isinstance(model, AbstractPrior) else model.data_shape
    if math.prod(made.shape[1:]) != math.prod(shape):
        raise ValueError(f"it generates shape {made.shape[1:]}, not {shape}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        if not np.isfinite(leaf).all():
            raise ValueError(f"non-finite numbers in {jax.tree_util.keystr(path)}")
