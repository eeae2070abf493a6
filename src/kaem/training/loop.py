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
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..errors import UserError
from ..model import KAEM, ready
from ..posterior import ImportanceSampling
from .build import build_optimiser, check_data
from .config import Config, GridConfig, OptimiserConfig, TrainingConfig

Parameters = dict[str, Array]


class TrainingDiverged(UserError):
    """A loss or gradient is no longer finite; `state` is the last one that was."""

    def __init__(self, state: "State", tensor: str) -> None:
        self.state, self.step, self.tensor = state, state.step, tensor
        super().__init__(
            f"training diverged at step {state.step + 1}: {tensor} is not finite. The model after "
            f"step {state.step} is kept. Lower optimiser.generator_rate or optimiser.prior_rate, "
            "or raise training.noise, and start a new run."
        )


@dataclass(frozen=True)
class State:
    """Everything that changes in training; data position and keys follow from `step`."""

    step: int
    model: KAEM
    optimiser: Any


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


def as_float(x: Array) -> Float[Array, "..."]:
    """Pixels in [0, 1] from bytes; floats as they are."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def parameters(model: KAEM) -> Parameters:
    """The model's arrays by name: what the optimiser sees, whatever the model's static fields."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(model, eqx.is_inexact_array))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def with_parameters(model: KAEM, values: Parameters) -> KAEM:
    """`model` with its arrays replaced."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    restored = jax.tree.unflatten(jax.tree.structure(arrays), list(values.values()))
    return eqx.combine(restored, rest)


def initial_state(model: KAEM, optimiser: OptimiserConfig, steps: int) -> State:
    return State(0, model, build_optimiser(optimiser, steps).init(parameters(model)))


class _Dispatch:
    """A compiled run of up to `longest` updates, for one table resolution."""

    def __init__(self, config: Config, posterior: ImportanceSampling, model: KAEM) -> None:
        self.longest = config.training.log_every
        transform = build_optimiser(config.optimiser, config.training.steps)
        names = list(parameters(model))  # dictionaries come out of jit in sorted order

        def loss(params: Parameters, x: Array, key: PRNGKeyArray) -> tuple[Array, Any]:
            ordered = {name: params[name] for name in names}
            value, info = posterior.expected_log_joint(with_parameters(model, ordered), x, key)
            return -value, {"loss": -value} | info._asdict()

        def run(
            params: Any, optimiser: Any, data: Any, indices: Any, key: Any, start: Any, count: Any
        ) -> Any:
            def update(carry: Any) -> Any:
                i, params, optimiser, totals, _ = carry
                x = as_float(data[indices[i]])
                step_key = jax.random.fold_in(key, start + i)
                (_, info), grads = jax.value_and_grad(loss, has_aux=True)(params, x, step_key)
                finite = jnp.isfinite(
                    info["loss"] + sum(jnp.sum(jnp.abs(g)) for g in grads.values())
                )

                def apply(params: Any, optimiser: Any) -> Any:
                    changes, optimiser = transform.update(grads, optimiser, params)
                    return optax.apply_updates(params, changes), optimiser

                # A bad gradient changes nothing: what is left is the last good state.
                params, optimiser = jax.lax.cond(
                    finite, apply, lambda *same: same, params, optimiser
                )
                totals = jax.tree.map(jnp.add, totals, info)
                return i + finite, params, optimiser, totals, finite

            def more(carry: Any) -> Any:
                return (carry[0] < count) & carry[-1]

            zero = {name: jnp.zeros(()) for name in ("loss", *posterior.info_names)}
            carry = (jnp.int32(0), params, optimiser, zero, jnp.bool_(True))
            return jax.lax.while_loop(more, update, carry)

        def gradient(params: Any, x: Any, key: Any) -> Any:
            return jax.value_and_grad(loss, has_aux=True)(params, x, key)

        self._run = jax.jit(run, donate_argnums=(0, 1))
        self._gradient = jax.jit(gradient)

    def __call__(
        self, state: State, data: Array, indices: np.ndarray, key: PRNGKeyArray
    ) -> tuple[State, dict[str, float], bool]:
        params = parameters(state.model)
        count = len(indices)
        padded = np.zeros((self.longest, indices.shape[1]), np.int32)
        padded[:count] = indices
        done, changed, optimiser, totals, finite = self._run(
            params, state.optimiser, data, padded, key, state.step, count
        )
        model = with_parameters(state.model, {name: changed[name] for name in params})
        new = State(state.step + int(done), model, optimiser)
        return new, {name: float(total) for name, total in totals.items()}, bool(finite)

    def culprit(self, state: State, x: Array, key: PRNGKeyArray) -> str:
        """The first tensor that is not finite in the update after `state`."""
        step_key = jax.random.fold_in(key, state.step)
        (_, info), grads = self._gradient(parameters(state.model), x, step_key)
        for name, value in info.items():
            if not np.isfinite(value):
                return name
        for name, leaf in grads.items():
            if not np.isfinite(leaf).all():
                return f"the gradient of model{name}"
        return "the sum of the gradients"


def regridded(model: KAEM, grid: GridConfig, key: PRNGKeyArray) -> KAEM:
    """The same model on grids adapted to prior samples (Table hp-nist, grid updating)."""
    z = model.prior.sample(key, grid.samples)
    if grid.prior:
        model = eqx.tree_at(lambda m: m.prior, model, model.prior.regrid(z, grid.ratio))
    if grid.generator:
        model = eqx.tree_at(lambda m: m.generator, model, model.generator.regrid(z, grid.ratio))
    return model


def updates(
    state: State, data: np.ndarray, posterior: ImportanceSampling, config: Config
) -> Iterator[Boundary]:
    """Train from `state` to `config.training.steps`, yielding at every boundary.

    A yielded state is valid until the next one is asked for: its buffers are then donated.
    """
    t = config.training
    key = jax.random.fold_in(jax.random.key(t.seed), 1)
    grid_key = jax.random.fold_in(jax.random.key(t.seed), 2)
    regrids = set(grid_steps(config.grid, t.steps))
    edges = {t.steps, *regrids}
    for every in (t.log_every, t.checkpoint_every, t.sample_every):
        edges |= set(range(every, t.steps, every))
    device_data = jnp.asarray(data)
    dispatch = _Dispatch(config, posterior, state.model)
    table_error = eqx.filter_jit(lambda model: jnp.max(model.prior.table_error()))
    totals: dict[str, float] = {}
    last_log = state.step
    warned = False
    for edge in sorted(e for e in edges if e > state.step):
        if state.step in regrids:
            step_key = jax.random.fold_in(grid_key, state.step)
            state = replace(state, model=regridded(state.model, config.grid, step_key))
        indices = batch_indices(len(data), t, state.step, edge)
        state, sums, finite = dispatch(state, device_data, indices, key)
        if not finite:
            x = as_float(device_data[batch_indices(len(data), t, state.step, state.step + 1)[0]])
            raise TrainingDiverged(state, dispatch.culprit(state, x, key))
        totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
        if edge % t.log_every and edge != t.steps:
            yield Boundary(state, None)
            continue
        metrics = {name: total / (edge - last_log) for name, total in totals.items()}
        totals, last_log, notes = {}, edge, []
        if state.model.prior.inverse_transform == "exact":
            metrics["table_error"] = float(table_error(state.model))
            if metrics["table_error"] > config.prior.tolerance:
                prior = state.model.prior.refined(config.prior.tolerance)
                notes.append(
                    f"tables refined from {state.model.prior.cells} to {prior.cells} cells: "
                    f"their error had reached {metrics['table_error']:.1e}"
                )
                state = replace(state, model=eqx.tree_at(lambda m: m.prior, state.model, prior))
                dispatch = _Dispatch(config, posterior, state.model)
        if metrics["collapsed"] > 0.5 and not warned:
            warned = True
            notes.append(
                f"the effective sample size has collapsed: {metrics['collapsed']:.0%} of the "
                f"examples rest on one of {posterior.samples} proposals (mean ESS "
                f"{metrics['ess']:.1f}); learning goes on as nearest-proposal matching, and a "
                "larger posterior.samples or training.noise spreads the weight"
            )
        yield Boundary(state, metrics, tuple(notes))


def fit(
    model: KAEM,
    x: np.ndarray,
    *,
    posterior: ImportanceSampling | None = None,
    steps: int = 5000,
    batch_size: int = 100,
    optimiser: OptimiserConfig | None = None,
    grid: GridConfig | None = None,
    seed: int = 0,
    log_every: int = 50,
) -> tuple[KAEM, list[dict[str, float]]]:
    """Train `model` on `x` in memory; returns it ready to sample, and one record per log step.

    `kaem train` does the same with a run folder, checkpoints and progress.
    """
    config = Config(
        optimiser=optimiser or OptimiserConfig(),
        grid=grid or GridConfig(),
        training=TrainingConfig(
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            log_every=log_every,
            checkpoint_every=log_every * max(1, steps // log_every),
            sample_every=steps,
        ),
    )
    from ..data.images import checked

    x = checked(np.asarray(x), "x")
    check_data(x, "x", batch_size=batch_size, output=model.generator.output, shape=model.data_shape)
    # The caller's arrays must survive the donation of buffers.
    model = jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array(leaf) else leaf, model)
    state = initial_state(model, config.optimiser, steps)
    history = []
    for boundary in updates(state, x, posterior or ImportanceSampling(), config):
        state = boundary.state
        if boundary.metrics is not None:
            history.append({"step": state.step, **boundary.metrics})
    return ready(state.model), history
