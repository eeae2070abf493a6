"""Updates: many for each call of one compiled loop, on one device or shared by several.

Batches are put together on the host, by each process for its own devices, and given to the devices
some updates at a time: data need not fit in the memory of a device, and a host reads only its share.
Those of the next call are read by a thread while the devices work.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from ..data.rows import Examples
from ..learning import AbstractLearner
from ..methods import with_arguments
from ..models import as_float
from ..parallel import (
    SPLIT,
    WHOLE,
    apart,
    average,
    everywhere,
    here,
    kept_apart,
    over_batch,
    spread,
    training_mesh,
    whole,
)
from .augmentation import Augmentation
from .parameters import parameters, with_parameters, without
from .plan import Plan, State, TrainingDiverged

_BYTES = 2**26  # of batches given to the devices at once


def batch_indices(
    n: int, key: PRNGKeyArray, size: int, start: int, stop: int
) -> Int[np.ndarray, "t B"]:
    """Return which of `n` examples updates start..stop-1 see: a new permutation every epoch."""
    high, low = (int(word) for word in np.ravel(jax.random.key_data(key))[-2:])
    seed, per_epoch = (high << 32) | low, n // size
    chosen, permutations = [], {}
    for step in range(start, stop):
        epoch, position = divmod(step, per_epoch)
        if epoch not in permutations:
            permutations[epoch] = np.random.default_rng([seed, epoch]).permutation(n)
        chosen.append(permutations[epoch][position * size : (position + 1) * size])
    return np.stack(chosen).astype(np.int32)


def rows(memory: dict[str, Array], indices: Any) -> dict[str, Array]:
    """Return the learner's memory as one update sees it: the chains of its own examples."""
    if "chains" not in memory:
        return memory
    return memory | {"chains": memory["chains"][indices]}


class _Task(eqx.Module):
    """What an update is a function of, beside the state: compiled once for all that look alike.

    Plain numbers, such as the noise of a model or the step size of chains, are arguments of the
    compiled update: other values compile nothing.
    """

    rest: Any  # the model without what is trained
    learner: AbstractLearner
    transform: optax.GradientTransformation
    augmentation: Augmentation
    mesh: Any
    halved: bool
    steps: Array
    key: PRNGKeyArray
    variation: PRNGKeyArray  # of images, before they are split among devices

    def gradient(self, params: Any, memory: Any, step: Any, images: Any) -> Any:
        """Return what an update of `images` saw, what it keeps, and the gradients of the loss."""
        learner, mesh = self.learner, self.mesh

        def loss(params: Any, memory: Any, x: Any, key: Any, rest: Any, progress: Any) -> Any:
            model = with_parameters(rest, params)
            if self.halved:
                model = model.halved()
            value, (info, memory) = learner.objective(model, x, key, memory, progress)
            return -value, ({"loss": -value} | info, memory)

        arrays, static = eqx.partition(self.rest, eqx.is_array)

        def part(params: Any, memory: Any, x: Any, key: Any, arrays: Any, progress: Any) -> Any:
            (_, (info, kept)), grads = jax.value_and_grad(loss, has_aux=True)(
                params, memory, x, key, eqx.combine(arrays, static), progress
            )
            chains = {name: kept.pop(name) for name in ("chains",) if name in kept}
            info, kept, grads = average((info, kept, grads))
            return info, kept | chains, grads

        where = {name: SPLIT if name == "chains" else WHOLE for name in memory}
        whole = over_batch(
            part, mesh, (WHOLE, where, SPLIT, WHOLE, WHOLE, WHOLE), (WHOLE, where, WHOLE)
        )
        images = self.augmentation(images, jax.random.fold_in(self.variation, step))
        x, progress = as_float(images), step / self.steps
        return whole(params, memory, x, jax.random.fold_in(self.key, step), arrays, progress)

    def update(self, carry: Any, start: Array, indices: Array, batches: Array) -> Any:
        i, (params, optimiser, memory), totals, _ = carry
        mine = rows(memory, indices[i])
        info, kept, grads = self.gradient(params, mine, start + i, batches[i])
        finite = jnp.isfinite(info["loss"] + sum(jnp.sum(jnp.abs(g)) for g in grads.values()))

        def apply(params: Any, optimiser: Any) -> Any:
            changes, optimiser = self.transform.update(
                grads, optimiser, params, value=info["loss"], grad=grads
            )
            return optax.apply_updates(params, changes), optimiser

        # A bad gradient changes nothing: what is left is the last good state.
        params, optimiser = jax.lax.cond(finite, apply, lambda *same: same, params, optimiser)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), kept, mine)
        if "chains" in memory:
            changed = memory["chains"].at[indices[i]].set(kept["chains"])
            kept["chains"] = kept_apart(changed, self.mesh)
        totals = jax.tree.map(lambda sum, new: jnp.where(finite, sum + new, sum), totals, info)
        return i + finite, (params, optimiser, kept), totals, finite


@eqx.filter_jit(donate="all-except-first")
def _run(fixed: tuple[_Task, Array, Array, Array, Array], held: Any, sums: Any) -> Any:
    """Make up to `count` updates from `start`; stop before the first whose gradient is not finite."""
    task, indices, batches, start, count = fixed

    def more(carry: Any) -> Any:
        return (carry[0] < count) & carry[-1]

    carry = (jnp.int32(0), held, sums, jnp.bool_(True))
    return jax.lax.while_loop(
        more, lambda carry: task.update(carry, start, indices, batches), carry
    )


@eqx.filter_jit
def _gradient(task: _Task, params: Any, memory: Any, step: Any, indices: Any, images: Any) -> Any:
    return task.gradient(params, rows(memory, indices), step, images)


class Dispatch:
    """Updates of one plan on one data set, many for each call of the compiled loop."""

    def __init__(self, plan: Plan, data: Examples) -> None:
        self.plan, self.data = plan, data
        self.mesh = training_mesh(plan.learner.splits(plan.batch_size))
        bytes_each = plan.batch_size * data[:1].nbytes
        self.most = min(plan.log_every, max(1, _BYTES // bytes_each))  # updates in a call
        self._reader = ThreadPoolExecutor(1, "batches")
        self._ahead: tuple[int, int, Future[tuple[Array, Array]]] | None = None

    def _task(self, state: State) -> tuple[_Task, dict[str, Array]]:
        plan, trained = self.plan, parameters(state.model, self.plan.freeze)
        rest = without(with_arguments(state.model), trained)
        arrays, static = eqx.partition((rest, with_arguments(plan.learner)), eqx.is_array)
        numbers = (jnp.int32(plan.steps), plan.keyed(1), plan.keyed(7))
        arrays, numbers = everywhere((arrays, numbers), self.mesh)
        rest, learner = eqx.combine(arrays, static)
        how = (rest, learner, plan.transform, plan.augmentation, self.mesh, plan.halved)
        return _Task(*how, *numbers), trained

    def _remembered(self, state: State) -> dict[str, Array]:
        """Return the learner's memory on the devices: of the chains, a share of the examples on each."""
        return {
            name: (apart if name == "chains" else everywhere)(value, self.mesh)
            for name, value in state.memory.items()
        }

    def _batches(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return which examples the updates see, and the examples, for as many updates as a call may make."""
        plan, data = self.plan, self.data
        chosen = np.zeros((self.most, plan.batch_size), np.int32)
        chosen[: stop - start] = batch_indices(len(data), plan.key, plan.batch_size, start, stop)
        shape = (*chosen.shape, *data.shape[1:])
        return everywhere(chosen, self.mesh), spread(lambda at: data[chosen[at]], shape, self.mesh)

    def _read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return what `_batches` does, which may have been read already."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == start and stop <= ahead[1]:
            return ahead[2].result()  # if of more updates, those are not made
        return self._batches(start, stop)

    def _read_ahead(self, start: int, count: int) -> None:
        """Begin to read for the call after this one, which makes about as many updates, or somewhat more."""
        stop = min(start + min(2 * count, self.most), self.plan.steps)
        if start < stop:
            self._ahead = start, stop, self._reader.submit(self._batches, start, stop)

    def __call__(self, state: State, stop: int) -> State:
        """Return the state at step `stop`, with sums of what was seen; raise if training diverges."""
        while state.step < stop:
            state = self._some(state, min(stop, state.step + self.most))
        return state

    def _some(self, state: State, stop: int) -> State:
        task, trained = self._task(state)
        count = stop - state.step
        # Summed on from where the last dispatch ended: the sums, too, do not depend on the cuts.
        names = ("loss", *self.plan.learner.info_names)
        sums = {name: jnp.asarray(state.sums.get(name, 0.0), float) for name in names}
        # Where the results will be: a second placement would mean a second compilation.
        held, sums, numbers = everywhere(
            ((trained, state.optimiser), sums, (jnp.int32(state.step), jnp.int32(count))), self.mesh
        )
        held = (*held, self._remembered(state))
        fixed = (task, *self._read(state.step, stop), *numbers)
        self._read_ahead(stop, count)
        done, (changed, optimiser, memory), sums, finite = _run(fixed, held, sums)
        done, changed, optimiser, sums, finite = here((done, changed, optimiser, sums, finite))
        new = replace(
            state,
            step=state.step + int(done),
            model=with_parameters(without(state.model, trained), changed),
            optimiser=optimiser,
            memory={
                name: whole(value, len(self.data)) if name == "chains" else here(value)
                for name, value in memory.items()
            },
            sums={name: float(total) for name, total in sums.items()},
        )
        if not finite:
            raise self.divergence(new)
        return new

    def divergence(self, state: State) -> TrainingDiverged:
        """Return why the update after `state` failed: lost chains, or the first tensor that is not finite."""
        task, trained = self._task(state)
        params, step = everywhere((trained, jnp.int32(state.step)), self.mesh)
        memory = self._remembered(state)
        indices, batches = self._batches(state.step, state.step + 1)
        info, _, grads = _gradient(task, params, memory, step, indices[0], batches[0])
        info, grads = here((info, grads))
        tensor = "the sum of the gradients"
        for name, leaf in reversed(grads.items()):
            if not np.isfinite(leaf).all():
                tensor = f"the gradient of model{name}"
        for name, value in reversed(info.items()):
            if not np.isfinite(value):
                tensor = name
        seen = {name: float(value) for name, value in info.items()}
        return TrainingDiverged(state, tensor, self.plan.learner.diagnosis(seen))
