"""Reading models and priors: a `.safetensors` file, or the model of a run folder."""

import math
import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from .baselines import DDPM  # noqa: F401  # files may hold rivals: importing their room makes them known
from .errors import UNREADABLE, UserError
from .files import check_seal, parse_json
from .models import AbstractModel
from .priors import AbstractPrior
from .serialisation import FORMAT, restore


def _model_file(path: str | os.PathLike[str]) -> Path:
    return Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)


def _opened(path: str | os.PathLike[str]) -> Any:
    """Open a `.safetensors` file that is as it was written, with a header no larger than models have."""
    check_seal(path)
    return safe_open(path, framework="numpy")


def _once(get: Callable[[str], np.ndarray]) -> Callable[[str], np.ndarray]:
    """Return what reads each array once: one that is named a million times fills any memory."""
    seen: set[str] = set()

    def read_array(name: str) -> np.ndarray:
        if name in seen:
            raise ValueError(f"it has the array {name[:80]} in two places")
        seen.add(name)
        return get(name)

    return read_array


def read(path: str | os.PathLike[str]) -> Any:
    """Return a model or a prior as it was saved: a `.safetensors` file, or the model of a run folder."""
    path = _model_file(path)
    if not path.is_file():
        raise UserError(f"there is no model at {path}; give a run folder or a .safetensors file.")
    try:
        with _opened(path) as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise UserError(
                    f"it is a safetensors file but not a KAEM model (format {header.get('format')!r}, "
                    f"expected {FORMAT!r})."
                )
            model = restore(header["structure"], _once(file.get_tensor))
        if not isinstance(model, AbstractModel | AbstractPrior):
            raise ValueError(f"it holds a {type(model).__name__}")
        _check(model)
    except UserError as error:
        raise UserError(f"{path} cannot be read as a model: {error}") from error
    except Exception as error:  # an altered file can make anything fail: what it says is untrusted
        of_run = path.name == "model.safetensors" and (path.parent / "config.json").is_file()
        remedy = (
            f"`kaem train WHAT --out {path.parent} --resume` writes it anew from the run's newest "
            "checkpoint"
            if of_run
            else "Copy it again from where it came from, or save it again"
        )
        raise UserError(
            f"{path} is not a readable KAEM model ({type(error).__name__}: {str(error)[:400]}). It may be "
            f"truncated or altered. {remedy}."
        ) from error
    return model


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings, and what else was recorded with them, in the header of a model file."""
    try:
        with _opened(path) as file:
            found = parse_json((file.metadata() or {}).get("config", "{}"))
    except (SafetensorError, *UNREADABLE) as error:
        raise UserError(f"{path} has no readable header ({error}).") from error
    return found if isinstance(found, dict) else {}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model, ready to sample: a KAEM with its tables refined and cached, or a rival.

    `path` is a `.safetensors` file or a run folder.
    """
    model = read(path)
    if not isinstance(model, AbstractModel):  # files hold priors, too
        raise UserError(
            f"{path} holds a prior without a generator: read it with `kaem.load_prior`, or train a "
            "generator on it with `kaem train WHAT --prior-from`."
        )
    return _prepared(model, path)


def read_prior(path: str | os.PathLike[str]) -> Any:
    """Return the prior of a run folder, a model file or a prior file, as it was saved."""
    found = read(path)
    prior = getattr(found, "prior", found)
    if not hasattr(prior, "inverse_cdf"):
        raise UserError(
            f"{path} holds a {type(found).__name__}, which has no prior of one-dimensional densities; "
            "give a KAEM, or a file that `prior.save` wrote."
        )
    return prior


def load_prior(path: str | os.PathLike[str]) -> Any:
    """Read a prior, ready to sample, from a run folder, a model file or a prior file."""
    return _prepared(read_prior(path), path)


def _prepared(thing: Any, path: str | os.PathLike[str]) -> Any:
    """Return a model or a prior ready to sample, with as many cells as its file says, if it can be right."""
    prior = getattr(thing, "prior", thing)
    if getattr(prior, "inverse_transform", None) == "exact":
        with _opened(_model_file(path)) as file:
            text = (file.metadata() or {}).get("cells", "")
        possible = {str(c): c for c in prior.possible_cells()}
        if "cells" in signature(thing.prepared).parameters:
            return thing.prepared(cells=possible.get(text))
    return thing.prepared()


def _check(thing: Any) -> None:
    """Check that the pieces fit together and hold numbers, before anything is computed with them."""
    made = eqx.filter_eval_shape(lambda m, key: m.sample(key, 1), thing, jax.random.key(0))
    shape = getattr(thing, "data_shape", None) or thing.shape
    if math.prod(made.shape[1:]) != math.prod(shape):
        raise ValueError(f"it generates shape {made.shape[1:]}, not {shape}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(thing, eqx.is_array)):
        ours = _owner(thing, path).__module__.startswith(f"{__package__}.")
        name = jax.tree_util.keystr(path)
        if ours and leaf.dtype not in (jnp.float32, jnp.float64):
            raise ValueError(f"{leaf.dtype} numbers in {name}, not float32")
        if not np.isfinite(leaf).all():
            raise ValueError(f"non-finite numbers in {name}")
        if ours and name.endswith(".grid") and not (np.diff(leaf, axis=-1) > 0).all():
            raise ValueError(f"numbers in {name} that do not ascend")


def _owner(thing: Any, path: tuple[Any, ...]) -> type:
    """Return the class of the module that has the array at the end of `path` in a field."""
    owner = type(thing)
    for key in path:
        if hasattr(key, "name"):
            owner, thing = type(thing), getattr(thing, key.name)
        else:
            thing = thing[key.idx]
    return owner
