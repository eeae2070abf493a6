"""Batches over devices, of one process or of many.

On CPU that is one device for each core, which `kaem.cli` asks for: XLA runs a device's small
operations on one thread, so two devices with half a batch each keep two cores busy where one
device cannot. In a program of your own, set `JAX_NUM_CPU_DEVICES` before JAX is imported.

Several processes, on one machine or many, run the same program after `kaem.processes.connect`. Each keeps
all of a model and of the training's state, sees its share of every batch, and computes what lies between
updates by itself, from the same numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from .errors import UserError

AXIS = "batch"
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


def batch_mesh(batch: int) -> Mesh | None:
    """Return as many devices of this process as divide a batch evenly, or None if that is one."""
    devices = jax.local_devices()
    number = max(n for n in range(1, len(devices) + 1) if batch % n == 0)
    return None if number == 1 else Mesh(np.array(devices[:number]), (AXIS,))


def training_mesh(batch: int) -> Mesh | None:
    """Return as many devices of all processes, equally many of each, as divide a batch; None if that is one."""
    devices, processes = jax.devices(), jax.process_count()
    if processes == 1:
        return batch_mesh(batch)
    if batch % processes:
        raise UserError(
            f"{processes} processes cannot share an update of {batch} examples or proposals evenly: make "
            f"training.batch_size (and learner.samples of importance sampling) a multiple of {processes}."
        )
    of = [[d for d in devices if d.process_index == process] for process in range(processes)]
    fewest = min(map(len, of))
    each = max(n for n in range(1, fewest + 1) if batch % (n * processes) == 0)
    return Mesh(np.array([device for own in of for device in own[:each]]), (AXIS,))


# Inside of an update.


def over_batch(
    function: Callable[..., Any], mesh: Mesh | None, splits: Any, results: Any
) -> Callable[..., Any]:
    """Return `function` with each device seeing its share of the batch.

    **Arguments:** `splits` and `results` say which arguments and results have a batch axis (`SPLIT`)
    or none (`WHOLE`). Results without one must be the same on all devices: take the `average`. Keys are
    the same on all devices; what is drawn for examples is drawn by `of_batch`.
    """
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=splits, out_specs=results, check_vma=False)


def place() -> tuple[Int[Array, ""] | int, int]:
    """Return which share of the batch a function sees, and how many there are: (0, 1) outside of `over_batch`."""
    try:
        return jax.lax.axis_index(AXIS), jax.lax.axis_size(AXIS)
    except NameError:  # no such axis here
        return 0, 1


def of_batch(
    draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...], axis: int = 0
) -> Array:
    """Return what `draw` makes for the examples that a device sees, the same on any number of devices.

    **Arguments:** `draw` makes random numbers of a shape; `shape` is that of the share, with its
    examples along `axis`. Every device draws for the whole batch and keeps its share: numbers for
    latents cost next to nothing beside a pass of the generator.
    """
    index, number = place()
    if number == 1:
        return draw(shape)
    axis %= len(shape)
    whole = draw((*shape[:axis], number * shape[axis], *shape[axis + 1 :]))
    return jax.lax.dynamic_slice_in_dim(whole, index * shape[axis], shape[axis], axis)


def average(tree: Any) -> Any:
    """Return averages over all devices of a batch, or the same where there is one."""
    if place()[1] == 1:
        return tree
    if jax.process_count() == 1 or jax.default_backend() != "cpu":
        return jax.lax.pmean(tree, AXIS)
    # Processes on CPUs exchange one array after the other, which takes ten times as long as one that has all.
    flat, parts = ravel_pytree(tree)
    return parts(jax.lax.pmean(flat, AXIS))


def gathered(share: Array, axis: int = 0) -> Array:
    """Return the shares of all devices, one after the other along `axis`."""
    return share if place()[1] == 1 else jax.lax.all_gather(share, AXIS, axis=axis, tiled=True)


# Between updates.


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Put arrays on all devices of `mesh`; those of other processes give their own, which are equal."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    sharding = NamedSharding(mesh, WHOLE)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: _everywhere(leaf, sharding), tree)


def _everywhere(leaf: Any, sharding: NamedSharding) -> Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _everywhere(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def spread(part: Callable[[Any], np.ndarray], shape: tuple[int, ...], mesh: Mesh | None) -> Array:
    """Return an array [t, B, ...] whose second axis the devices share; `part` makes what an index of the first two asks for."""
    if mesh is None:
        return jnp.asarray(part((slice(None), slice(None))))
    sharding = NamedSharding(mesh, PartitionSpec(None, AXIS))
    return jax.make_array_from_callback(shape, sharding, lambda index: part((index or ())[:2]))


def apart(rows: Any, mesh: Mesh | None) -> Array:
    """Put an array [n, ...] on the devices of `mesh`, with an equal share of its rows on each; `whole` undoes it."""
    if mesh is None:
        return jnp.asarray(rows)
    value = np.asarray(rows)
    margin = [(0, -len(value) % mesh.size)] + [(0, 0)] * (value.ndim - 1)
    padded = np.pad(value, margin)
    sharding = NamedSharding(mesh, SPLIT)
    return jax.make_array_from_callback(padded.shape, sharding, lambda index: padded[index])


def kept_apart(rows: Array, mesh: Mesh | None) -> Array:
    """Return rows that were put `apart`, and were changed within compiled code, where they are to stay."""
    if mesh is None:
        return rows
    return jax.lax.with_sharding_constraint(rows, NamedSharding(mesh, SPLIT))


def whole(rows: Array, n: int) -> Array:
    """Return the `n` rows that were put `apart`, as an array of this process."""
    if not rows.is_fully_addressable:
        from jax.experimental.multihost_utils import process_allgather

        return jnp.asarray(process_allgather(rows, tiled=True)[:n])
    return rows[:n] if len(rows) > n else rows


def here(tree: Any) -> Any:
    """Return arrays that all processes hold alike as arrays of this one."""
    if jax.process_count() == 1:
        return tree
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
