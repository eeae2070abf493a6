r"""The training loop: many updates per dispatch, every event at a step known in advance.

`updates` yields at each boundary (a log, checkpoint, sample or grid step, or the end), and every few
seconds in between, and leaves files and printing to its caller: `fit` and run folders are two callers
of it. All randomness is a function of the key and the step, so the state after step t does not depend
on how the steps were cut into dispatches, or on whether the process was killed in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from ..errors import UserError
from ..learning import AbstractLearner
from ..methods import with_arguments
from ..models import AbstractModel, as_float
from ..parallel import SPLIT, WHOLE, batch_mesh, everywhere, mean, over_batch
from .augmentation import Augmentation
from .optimiser import Adam, Optimiser, averages, begun_anew, transformation
from .parameters import Where, is_frozen, parameters, with_parameters, without
from .upkeep import Upkeep, carried, turned

_SECONDS = 5.0  # of updates in one dispatch, about: callers may want to stop in between


class TrainingDiverged(UserError):
    """A loss or gradient is no longer finite; `state` is the last one that was."""

    def __init__(self, state: "State", tensor: str, diagnosis: str | None = None) -> None:
        self.state, self.step, self.tensor = state, state.step, tensor
        cause = diagnosis or (
            f"{tensor} is not finite. Lower optimiser.generator_rate or optimiser.prior_rate, or "
            "raise model.noise (a DDPM has only the first)"
        )
        super().__init__(
            f"training diverged at step {state.step + 1}: {cause}, and start a new run. The model "
            f"after step {state.step} is kept."
        )


@dataclass(frozen=True)
class Plan:
    """How a model is trained: everything that determines the updates, beside the model and the data."""

    learner: AbstractLearner
    key: PRNGKeyArray
    steps: int = 5000
    batch_size: int = 100
    optimiser: Optimiser = field(default_factory=Adam)
    upkeep: Upkeep = field(default_factory=Upkeep)
    augmentation: Augmentation = field(default_factory=Augmentation)
    freeze: Where | None = None  # a part of the model that is not trained
    new: bool = True  # whether the model has learned nothing yet that grids could lose
    log_every: int = 50
    marks: tuple[int, ...] = ()  # further intervals at whose multiples the loop yields

    @property
    def transform(self) -> optax.GradientTransformation:
        return transformation(self.optimiser, self.steps)

    def start(self, model: AbstractModel) -> Any:
        """Return the optimiser's state before the first update of a model."""
        return eqx.filter_jit(self.transform.init)(parameters(model, self.freeze))

    def may_turn(self, model: AbstractModel) -> bool:
        """Return whether latents may get other coordinates, which changes prior, generator and encoder."""
        parts = [getattr(model, name, None) for name in ("prior", "generator", "encoder")]
        return not is_frozen(parts, model, self.freeze)

    def finished(self, model: Any) -> Any:
        """Return the model as it is saved and used after training; what is frozen stays as it is."""
        return model.finished() if self.may_turn(model) else model

    def keyed(self, number: int) -> PRNGKeyArray:
        """Return the key for one use of randomness: 1 updates, 2 grids, 3 memory, 4 validation, 5 alignment, 6 lens, 7 augmentation."""
        return jax.random.fold_in(self.key, number)


@dataclass(frozen=True)
class State:
    """Everything that changes in training; data position and keys follow from `step`."""

    step: int
    model: Any  # an AbstractModel
    optimiser: Any
    memory: dict[str, Array]  # what the learner keeps: persistent chains, an adapted ladder
    sums: dict[str, float] = field(default_factory=dict)  # of what was seen since the last log step
    logged: int = 0  # that log step
    rates: float = 1.0  # the share of the learning rates that is left after a divergence

    @property
    def best(self) -> Any:
        """Return the model to sample and to save: of averaged weights, where the optimiser averages."""
        means = averages(self.optimiser)
        return with_parameters(without(self.model, means), means) if means else self.model


@dataclass(frozen=True)
class Boundary:
    """Where the loop stands after a dispatch; `metrics`, at log steps, are means since the last one."""

    state: State
    metrics: dict[str, float] | None
    notes: tuple[str, ...] = ()


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


def initial_state(model: AbstractModel, plan: Plan, examples: int) -> State:
    """Return the state before the first update, for `examples` training examples."""
    plan.learner.check(model)
    model = model.trainable()
    memory = plan.learner.memory(model, examples, plan.keyed(3))
    plan.augmentation.check(model.data_shape, persistent="chains" in memory)
    return State(0, model, plan.start(model), memory)


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
    steps: Array
    data: Array
    key: PRNGKeyArray
    variation: PRNGKeyArray  # of images, before they are split among devices

    def gradient(self, params: Any, memory: Any, step: Any, indices: Any) -> Any:
        """Return what an update saw, what it keeps, and the gradients of the loss."""
        learner, mesh = self.learner, self.mesh

        def loss(params: Any, memory: Any, x: Any, key: Any, rest: Any, progress: Any) -> Any:
            model = with_parameters(rest, params)
            value, (info, memory) = learner.objective(model, x, key, memory, progress)
            return -value, ({"loss": -value} | info, memory)

        arrays, static = eqx.partition(self.rest, eqx.is_array)

        def part(params: Any, memory: Any, x: Any, key: Any, arrays: Any, progress: Any) -> Any:
            (_, (info, kept)), grads = jax.value_and_grad(loss, has_aux=True)(
                params, memory, x, key, eqx.combine(arrays, static), progress
            )
            chains = {name: kept.pop(name) for name in ("chains",) if name in kept}
            info, kept, grads = mean((info, kept, grads), mesh)
            return info, kept | chains, grads

        where = {name: SPLIT if name == "chains" else WHOLE for name in memory}
        whole = over_batch(
            part, mesh, 3, (WHOLE, where, SPLIT, WHOLE, WHOLE, WHOLE), (WHOLE, where, WHOLE)
        )
        images = self.augmentation(self.data[indices], jax.random.fold_in(self.variation, step))
        x, progress = as_float(images), step / self.steps
        return whole(params, memory, x, jax.random.fold_in(self.key, step), arrays, progress)

    def update(self, carry: Any, start: Array, indices: Array) -> Any:
        i, (params, optimiser, memory), totals, _ = carry
        mine = rows(memory, indices[i])
        info, kept, grads = self.gradient(params, mine, start + i, indices[i])
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
            kept["chains"] = memory["chains"].at[indices[i]].set(kept["chains"])
        totals = jax.tree.map(lambda sum, new: jnp.where(finite, sum + new, sum), totals, info)
        return i + finite, (params, optimiser, kept), totals, finite


@eqx.filter_jit(donate="all-except-first")
def _run(fixed: tuple[_Task, Array, Array, Array], held: Any, sums: Any) -> Any:
    """Make up to `count` updates from `start`; stop before the first whose gradient is not finite."""
    task, indices, start, count = fixed

    def more(carry: Any) -> Any:
        return (carry[0] < count) & carry[-1]

    carry = (jnp.int32(0), held, sums, jnp.bool_(True))
    return jax.lax.while_loop(more, lambda carry: task.update(carry, start, indices), carry)


class Dispatch:
    """Updates of one plan on one data set, many for each call of the compiled loop."""

    def __init__(self, plan: Plan, data: np.ndarray) -> None:
        self.plan, self.examples = plan, len(data)
        self.mesh = batch_mesh(plan.batch_size) if plan.learner.data_parallel else None
        self.data = everywhere(jnp.asarray(data), self.mesh)

    def _task(self, state: State) -> tuple[_Task, dict[str, Array]]:
        plan, trained = self.plan, parameters(state.model, self.plan.freeze)
        rest = without(with_arguments(state.model), trained)
        arrays, static = eqx.partition((rest, with_arguments(plan.learner)), eqx.is_array)
        arrays, steps = everywhere((arrays, jnp.int32(plan.steps)), self.mesh)
        rest, learner = eqx.combine(arrays, static)
        how = (rest, learner, plan.transform, plan.augmentation, self.mesh)
        return _Task(*how, steps, self.data, plan.keyed(1), plan.keyed(7)), trained

    def _indices(self, start: int, stop: int) -> np.ndarray:
        return batch_indices(self.examples, self.plan.key, self.plan.batch_size, start, stop)

    def __call__(self, state: State, stop: int) -> State:
        """Return the state at step `stop`, with sums of what was seen; raise if training diverges."""
        task, trained = self._task(state)
        indices = self._indices(state.step, stop)
        padded = np.zeros((max(self.plan.log_every, len(indices)), indices.shape[1]), np.int32)
        padded[: len(indices)] = indices
        # Where the results will be: a second placement would mean a second compilation.
        held = everywhere((trained, state.optimiser, state.memory), self.mesh)
        fixed = (task, jnp.asarray(padded), jnp.int32(state.step), jnp.int32(len(indices)))
        # Summed on from where the last dispatch ended: the sums, too, do not depend on the cuts.
        names = ("loss", *self.plan.learner.info_names)
        sums = {name: jnp.asarray(state.sums.get(name, 0.0), float) for name in names}
        done, (changed, optimiser, memory), sums, finite = _run(fixed, held, sums)
        new = replace(
            state,
            step=state.step + int(done),
            model=with_parameters(without(state.model, trained), changed),
            optimiser=optimiser,
            memory=memory,
            sums={name: float(total) for name, total in sums.items()},
        )
        if not finite:
            raise self.divergence(new)
        return new

    def divergence(self, state: State) -> TrainingDiverged:
        """Return why the update after `state` failed: lost chains, or the first tensor that is not finite."""
        task, trained = self._task(state)
        indices = jnp.asarray(self._indices(state.step, state.step + 1)[0])
        mine = rows(state.memory, indices)
        gradient = eqx.filter_jit(_Task.gradient)
        info, _, grads = gradient(task, trained, mine, jnp.int32(state.step), indices)
        tensor = "the sum of the gradients"
        for name, leaf in reversed(grads.items()):
            if not np.isfinite(leaf).all():
                tensor = f"the gradient of model{name}"
        for name, value in reversed(info.items()):
            if not np.isfinite(value):
                tensor = name
        seen = {name: float(value) for name, value in info.items()}
        return TrainingDiverged(state, tensor, self.plan.learner.diagnosis(seen))


def _aligned(state: State, data: np.ndarray, plan: Plan) -> tuple[State, list[str]]:
    """Return the state with its prior where the latents of some examples are, or why it stays.

    The averaged weights say where; they and the trained ones then move alike.
    """
    key = jax.random.fold_in(plan.keyed(5), state.step)
    some = np.asarray(jax.random.permutation(key, len(data)))[: plan.upkeep.aligned_examples]
    best = state.best
    try:
        found = best.alignment(as_float(data[some]), key)
    except ValueError as error:  # latents that no map makes a product of densities of: learn on
        return state, [f"the prior was not aligned at step {state.step}: {error}"]
    if found is None:
        return state, []
    optimiser = turned(state.optimiser, state.model, found)
    if averages(optimiser):
        means = parameters(best.moved(found), plan.freeze)
        optimiser = optimiser._replace(mean=jax.tree.map(jnp.array, means))
    return replace(state, model=state.model.moved(found), optimiser=optimiser), []


def _too_few(model: AbstractModel, examples: int) -> list[str]:
    """Say that so many examples would not tell where the latents of a model with an encoder are."""
    latents: tuple[int, ...] = getattr(getattr(model, "prior", None), "shape", ())
    encodes = getattr(model, "encoder", None) is not None and len(latents) == 1
    if not encodes or examples > 2 * latents[0]:
        return []
    return [
        f"the prior will not be aligned: that takes more than twice as many examples as the {latents[0]} "
        f"latents, got {examples}; raise upkeep.aligned_examples, or add data"
    ]


def _focused(state: State, data: np.ndarray, plan: Plan) -> State:
    """Return the state with the lens that suits what the model makes of examples."""
    key = jax.random.fold_in(plan.keyed(6), state.step)
    some = np.asarray(jax.random.permutation(key, len(data)))[: plan.upkeep.focused_examples]
    lens = state.best.focused(as_float(data[some]), key).lens
    return replace(state, model=eqx.tree_at(lambda model: model.lens, state.model, lens))


def updates(state: State, data: np.ndarray, plan: Plan) -> Iterator[Boundary]:
    """Train from `state` to the plan's last step, yielding at every boundary.

    A yielded state is valid until the next one is asked for: its buffers are then donated.
    """
    # A new grid preserves a density only as well as least squares can.
    grid = plan.upkeep.grid
    for part in ("prior", "generator"):
        if is_frozen(getattr(state.model, part, None), state.model, plan.freeze):
            grid = replace(grid, **{part: False})
    regrids = set(grid.steps(plan.steps))
    may_turn = plan.may_turn(state.model)
    aligning = plan.upkeep.aligning_steps(plan.steps) if may_turn else set()
    notes = _too_few(state.model, min(len(data), plan.upkeep.aligned_examples)) if aligning else []
    if notes:
        aligning = set()
    has_lens = getattr(state.model, "lens", None) is not None
    focusing = plan.upkeep.focusing_steps(plan.steps) if has_lens else set()
    edges = {plan.steps, *regrids, *aligning, *focusing}
    for every in (plan.log_every, *plan.marks):
        edges |= set(range(every, plan.steps, every))
    dispatch, most = Dispatch(plan, data), 1  # the first compiles, and says nothing of the next
    score = plan.upkeep.score_tolerance if plan.learner.follows_score else None
    warned = False
    for edge in sorted(e for e in edges if e > state.step):
        if state.step in regrids:
            key = jax.random.fold_in(plan.keyed(2), state.step)
            first = state.step == 0
            model = state.model.regridded(key, grid, new=plan.new and first)
            if first:
                optimiser = plan.start(model)
            else:
                optimiser = carried(state.optimiser, state.model, model)
                optimiser = begun_anew(optimiser, parameters(model, plan.freeze))
            state = replace(state, model=model, optimiser=optimiser)
        while state.step < edge:
            began, before = perf_counter(), state.step
            state = dispatch(state, min(edge, before + most))
            most = max(1, int(_SECONDS * (state.step - before) / (perf_counter() - began)))
            if state.step < edge:
                yield Boundary(state, None)
        if edge in aligning:
            state, trouble = _aligned(state, data, plan)
            notes += trouble
        if edge in focusing:
            state = _focused(state, data, plan)
        if edge % plan.log_every and edge != plan.steps:
            yield Boundary(state, None)
            continue
        metrics = {name: total / (edge - state.logged) for name, total in state.sums.items()}
        model, seen, done = state.model.tended(plan.upkeep.tolerance, score)
        metrics |= seen
        notes += done
        state = replace(state, model=model, sums={}, logged=edge)
        advice = None if warned else plan.learner.advice(metrics)
        if advice:
            warned = True
            notes.append(advice)
        yield Boundary(state, metrics, tuple(notes))
        notes = []
