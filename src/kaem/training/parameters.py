"""A model's arrays by name, and which of them an optimiser may change."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

Parameters = dict[str, Array]
Where = Callable[[Any], Any]  # a part of a model, as for `eqx.tree_at`


def named(tree: Any) -> dict[str, Array]:
    """Return the floating-point arrays of a model by their paths, such as `.prior.logits`."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_inexact_array))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def parameters(model: Any, freeze: Where | None = None) -> Parameters:
    """Return what is trained of a model: all arrays but those of fixed fields and of what is frozen.

    A field is fixed if its class says so (`methods.FIXED`); `freeze` selects a part of the model that
    training leaves alone. The names do not depend on static fields, such as the cells of tables.
    """
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_inexact_array))
    still = _still(model, freeze)
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in leaves
        if id(leaf) not in still and not _fixed(model, path)
    }


def _still(model: Any, freeze: Where | None) -> set[int]:
    return set() if freeze is None else {id(leaf) for leaf in jax.tree.leaves(freeze(model))}


def is_frozen(part: Any, model: Any, freeze: Where | None) -> bool:
    """Whether `freeze` selects anything of a part of a model, which nothing else may then change."""
    still = _still(model, freeze)
    return any(id(leaf) in still for leaf in jax.tree.leaves(part))


def _fixed(node: Any, path: tuple[Any, ...]) -> bool:
    """Whether a field on the way to a leaf is marked as fixed."""
    for key in path:
        if hasattr(key, "name"):
            if node.__dataclass_fields__[key.name].metadata.get("fixed", False):
                return True
            node = getattr(node, key.name)
        else:
            node = node[getattr(key, "idx", getattr(key, "key", None))]
    return False


def without(model: Any, names: Parameters) -> Any:
    """Return the model with None in place of the arrays so named."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if jax.tree_util.keystr(path) in names else leaf, model
    )


def with_parameters(rest: Any, values: Parameters) -> Any:
    """Return a model with arrays `values`, and what it has besides from `rest`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: values.get(jax.tree_util.keystr(path), leaf),
        rest,
        is_leaf=lambda leaf: leaf is None,
    )


def zeros(model: Any) -> Any:
    """Return the model with zeros in all its floating-point arrays."""
    return jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, model)


def sizes(model: Any) -> dict[str, int]:
    """Return how many parameters each part of a model learns."""
    found: dict[str, int] = {}
    for name, leaf in parameters(model.trainable()).items():
        part = name.split(".")[1].split("[")[0]
        found[part] = found.get(part, 0) + leaf.size
    return found
