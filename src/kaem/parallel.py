"""Batches over devices.

On CPU that is one device for each core, which `kaem.cli` asks for: XLA runs a device's small
operations on one thread, so two devices with half a batch each keep two cores busy where one
device cannot. In a program of your own, set `JAX_NUM_CPU_DEVICES` before JAX is imported.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PRNGKeyArray

AXIS = "batch"
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


def batch_mesh(batch: int) -> Mesh | None:
    """Return as many devices as divide a batch evenly, or None if that is one."""
    devices = jax.devices()
    number = max(n for n in range(1, len(devices) + 1) if batch % n == 0)
    return None if number == 1 else Mesh(np.array(devices[:number]), (AXIS,))


def over_batch(
    function: Callable[..., Any], mesh: Mesh | None, key: int, splits: Any, results: Any
) -> Callable[..., Any]:
    """Return `function` with each device seeing its share of the batch, and randomness of its own.

    **Arguments:** `key` is the position of the argument that is a random key; `splits` and
    `results` say which arguments and results have a batch axis (`SPLIT`) or none (`WHOLE`).
    Results without one must be the same on all devices: average them with `mean`.
    """
    if mesh is None:
        return function

    def local(*arguments: Any) -> Any:
        mine: PRNGKeyArray = jax.random.fold_in(arguments[key], jax.lax.axis_index(AXIS))
        return function(*arguments[:key], mine, *arguments[key + 1 :])

    return jax.shard_map(local, mesh=mesh, in_specs=splits, out_specs=results, check_vma=False)


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Put arrays on all devices of `mesh`."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, WHOLE))


def mean(tree: Any, mesh: Mesh | None) -> Any:
    """Return averages over devices, inside `over_batch`."""
    return tree if mesh is None else jax.lax.pmean(tree, AXIS)
