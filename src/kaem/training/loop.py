r"""The training loop: many updates per dispatch, every event at a step known in advance.

`updates` yields at each boundary (a log, checkpoint, sample or grid step, or the end) and leaves
files and printing to its caller. All randomness is a function of the seed and the step, so
the state after step t does not depend on how the steps were cut into dispatches, or on whether
the process was killed in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from ..errors import UserError
from ..model import AbstractModel, as_float
from ..parallel import SPLIT, WHOLE, batch_mesh, everywhere, mean, over_batch
from .build import Posterior, build_optimiser
from .config import Config, GridConfig, TrainingConfig
from .upkeep import regridded, upkeep

Parameters = dict[str, Array]


class TrainingDiverged(UserError):
    """A loss or gradient is no longer finite; `state` is the last one that was."""

    def __init__(self, state: "State", tensor: str, diagnosis: str | None = None) -> None:
        self.state, self.step, self.tensor = state, state.step, tensor
        cause = diagnosis or (
            f"{tensor} is not finite. Lower optimiser.generator_rate or optimiser.prior_rate, or "
            "raise training.noise (a DDPM has only the first)"
        )
        super().__init__(
            f"training diverged at step {state.step + 1}: {cause}, and start a new run. The model "
            f"after step {state.step} is kept."
        )


@dataclass(frozen=True)
class State:
    """Everything that changes in training; data position and keys follow from `step`."""

    step: int
    model: Any  # an AbstractModel
    optimiser: Any
    memory: dict[str, Array]  # what the posterior keeps: persistent chains, an adapted ladder


@dataclass(frozen=True)
class Boundary:
    """Where the loop stands after a dispatch; `metrics` are means since the last log step."""

    state: State
    metrics: dict[str, float] | None
    notes: tuple[str, ...] = ()


def grid_steps(grid: GridConfig, steps: int) -> list[int]:
    """0, then at intervals whose frequency decays: t + interval / decay^t."""
    found, t = [], 0
    while t < steps and (grid.prior or grid.generator):
        found.append(t)
        t += max(1, round(grid.interval / grid.decay**t))
    return found


def batch_indices(n: int, config: TrainingConfig, start: int, stop: int) -> Int[np.ndarray, "t B"]:
    """Which examples updates start..stop-1 see: a new permutation every epoch."""
    size = config.batch_size
    per_epoch = n // size
    rows, permutations = [], {}
    for step in range(start, stop):
        epoch, position = divmod(step, per_epoch)
        if epoch not in permutations:
            permutations[epoch] = np.random.default_rng([config.seed, epoch]).permutation(n)
        rows.append(permutations[epoch][position * size : (position + 1) * size])
    return np.stack(rows).astype(np.int32)


def parameters(model: AbstractModel) -> Parameters:
    """The model's arrays by name: what the optimiser sees, whatever the model's static fields."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_inexact_array))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def with_parameters(model: AbstractModel, values: Parameters) -> Any:
    """`model` with its arrays replaced."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    restored = jax.tree.unflatten(jax.tree.structure(arrays), list(values.values()))
    return eqx.combine(restored, rest)


def initial_state(
    model: AbstractModel,
    posterior: Posterior,
    config: Config,
    examples: int,
    transform: optax.GradientTransformation | None = None,
) -> State:
    """The state before the first update, for `examples` training examples."""
    t = config.training
    model = model.trainable()
    memory = posterior.memory(model, examples, jax.random.fold_in(jax.random.key(t.seed), 3))
    transform = transform or build_optimiser(config.optimiser, t.steps)
    return State(0, model, transform.init(parameters(model)), memory)


def rows(memory: dict[str, Array], indices: Any) -> dict[str, Array]:
    """The posterior's memory as one update sees it: the chains of its own examples."""
    if "chains" not in memory:
        return memory
    return memory | {"chains": memory["chains"][indices]}


class Dispatch:
    """A compiled run of up to `longest` updates, for one table resolution."""

    def __init__(
        self,
        config: Config,
        posterior: Posterior,
        model: AbstractModel,
        transform: optax.GradientTransformation | None = None,
    ) -> None:
        self.posterior = posterior
        self.longest = config.training.log_every
        transform = optax.with_extra_args_support(
            transform or build_optimiser(config.optimiser, config.training.steps)
        )
        names = list(parameters(model))  # dictionaries come out of jit in sorted order

        mesh = batch_mesh(config.training.batch_size) if posterior.data_parallel else None
        self.mesh = mesh

        def loss(params: Parameters, memory: Any, x: Any, key: Any, progress: Any) -> Any:
            if config.prior.frozen:
                params = {
                    name: jax.lax.stop_gradient(leaf) if name.startswith(".prior") else leaf
                    for name, leaf in params.items()
                }
            now = with_parameters(model, {name: params[name] for name in names})
            value, (info, memory) = posterior.objective(now, x, key, memory, progress)
            return -value, ({"loss": -value} | info, memory)

        def part(params: Any, memory: Any, x: Any, key: Any, progress: Any) -> Any:
            (_, (info, kept)), grads = jax.value_and_grad(loss, has_aux=True)(
                params, memory, x, key, progress
            )
            chains = {name: kept.pop(name) for name in ("chains",) if name in kept}
            info, kept, grads = mean((info, kept, grads), mesh)
            return info, kept | chains, grads

        def gradient(params: Any, memory: Any, data: Any, at: Any, key: Any) -> Any:
            step, indices = at
            where = {name: SPLIT if name == "chains" else WHOLE for name in memory}
            whole = over_batch(
                part, mesh, 3, (WHOLE, where, SPLIT, WHOLE, WHOLE), (WHOLE, where, WHOLE)
            )
            x, progress = as_float(data[indices]), step / config.training.steps
            return whole(params, memory, x, jax.random.fold_in(key, step), progress)

        def run(held: Any, data: Any, indices: Any, key: Any, start: Any, count: Any) -> Any:
            def update(carry: Any) -> Any:
                i, (params, optimiser, memory), totals, _ = carry
                at = (start + i, indices[i])
                mine = rows(memory, indices[i])
                info, kept, grads = gradient(params, mine, data, at, key)
                finite = jnp.isfinite(
                    info["loss"] + sum(jnp.sum(jnp.abs(g)) for g in grads.values())
                )

                def apply(params: Any, optimiser: Any) -> Any:
                    changes, optimiser = transform.update(
                        grads, optimiser, params, value=info["loss"], grad=grads
                    )
                    return optax.apply_updates(params, changes), optimiser

                # A bad gradient changes nothing: what is left is the last good state.
                params, optimiser = jax.lax.cond(
                    finite, apply, lambda *same: same, params, optimiser
                )
                kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), kept, mine)
                if "chains" in memory:
                    kept["chains"] = memory["chains"].at[indices[i]].set(kept["chains"])
                totals = jax.tree.map(jnp.add, totals, info)
                return i + finite, (params, optimiser, kept), totals, finite

            def more(carry: Any) -> Any:
                return (carry[0] < count) & carry[-1]

            zero = {name: jnp.zeros(()) for name in ("loss", *posterior.info_names)}
            carry = (jnp.int32(0), held, zero, jnp.bool_(True))
            return jax.lax.while_loop(more, update, carry)

        self._run = jax.jit(run, donate_argnums=0)
        self._gradient = jax.jit(gradient)

    def __call__(
        self, state: State, data: Array, indices: np.ndarray, key: PRNGKeyArray
    ) -> tuple[State, dict[str, float], bool]:
        params = parameters(state.model)
        count = len(indices)
        padded = np.zeros((self.longest, indices.shape[1]), np.int32)
        padded[:count] = indices
        # Where the results will be: a second placement would mean a second compilation.
        held = everywhere((params, state.optimiser, state.memory), self.mesh)
        done, (changed, optimiser, memory), totals, finite = self._run(
            held, data, padded, key, state.step, count
        )
        model = with_parameters(state.model, {name: changed[name] for name in params})
        new = State(state.step + int(done), model, optimiser, memory)
        return new, {name: float(total) for name, total in totals.items()}, bool(finite)

    def divergence(
        self, state: State, data: Array, indices: np.ndarray, key: PRNGKeyArray
    ) -> TrainingDiverged:
        """Why the update after `state` failed: lost chains, or the first tensor that is not finite."""
        at = (jnp.int32(state.step), jnp.asarray(indices))
        mine = rows(state.memory, indices)
        info, _, grads = self._gradient(parameters(state.model), mine, data, at, key)
        tensor = "the sum of the gradients"
        for name, leaf in reversed(grads.items()):
            if not np.isfinite(leaf).all():
                tensor = f"the gradient of model{name}"
        for name, value in reversed(info.items()):
            if not np.isfinite(value):
                tensor = name
        seen = {name: float(value) for name, value in info.items()}
        return TrainingDiverged(state, tensor, self.posterior.diagnosis(seen))


def updates(
    state: State,
    data: np.ndarray,
    posterior: Posterior,
    config: Config,
    transform: optax.GradientTransformation | None = None,
) -> Iterator[Boundary]:
    """Train from `state` to `config.training.steps`, yielding at every boundary.

    `transform` takes the place of the optimiser that the settings describe. A yielded state is valid until the next one is asked for: its buffers are then donated.
    """
    t = config.training
    key = jax.random.fold_in(jax.random.key(t.seed), 1)
    grid_key = jax.random.fold_in(jax.random.key(t.seed), 2)
    # A new grid preserves a density only as well as least squares can.
    grid = replace(config.grid, prior=config.grid.prior and not config.prior.frozen)
    regrids = set(grid_steps(grid, t.steps))
    edges = {t.steps, *regrids}
    for every in (t.log_every, t.checkpoint_every, t.sample_every):
        edges |= set(range(every, t.steps, every))
    dispatch = Dispatch(config, posterior, state.model, transform)
    chains = getattr(posterior, "follows_score", False)
    device_data = everywhere(jnp.asarray(data), dispatch.mesh)
    totals: dict[str, float] = {}
    last_log = state.step
    warned = False
    for edge in sorted(e for e in edges if e > state.step):
        if state.step in regrids:
            step_key = jax.random.fold_in(grid_key, state.step)
            model, optimiser = regridded(state.model, state.optimiser, grid, step_key, state.step)
            state = replace(state, model=model, optimiser=optimiser)
        indices = batch_indices(len(data), t, state.step, edge)
        state, sums, finite = dispatch(state, device_data, indices, key)
        if not finite:
            failed = batch_indices(len(data), t, state.step, state.step + 1)[0]
            raise dispatch.divergence(state, device_data, failed, key)
        totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
        if edge % t.log_every and edge != t.steps:
            yield Boundary(state, None)
            continue
        metrics = {name: total / (edge - last_log) for name, total in totals.items()}
        totals, last_log = {}, edge
        model, notes = upkeep(state.model, metrics, config.prior, chains)
        shapes: list[Any] = [jax.tree.structure(m) for m in (state.model, model)]
        if shapes[0] != shapes[1]:  # a table of another resolution is another program
            dispatch = Dispatch(config, posterior, model, transform)
        state = replace(state, model=model)
        advice = None if warned else _advice(metrics, config)
        if advice:
            warned = True
            notes.append(advice)
        yield Boundary(state, metrics, tuple(notes))


def _advice(metrics: dict[str, float], config: Config) -> str | None:
    """What a user should know about a posterior that works badly."""
    if metrics.get("collapsed", 0.0) > 0.5:
        return (
            f"the effective sample size has collapsed: {metrics['collapsed']:.0%} of the "
            f"examples rest on one of {config.posterior.samples} proposals (mean ESS "
            f"{metrics['ess']:.1f}); learning goes on as nearest-proposal matching, and a "
            "larger posterior.samples or training.noise spreads the weight"
        )
    if metrics.get("acceptance", 1.0) < 0.05:
        return (
            f"only {metrics['acceptance']:.1%} of the Metropolis proposals are accepted, so the "
            "chains hardly move; lower posterior.step_size"
        )
    return None
