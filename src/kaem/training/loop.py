r"""The training loop: many updates per dispatch, every event at a step known in advance.

`updates` yields at each boundary (a log, checkpoint, sample or grid step, or the end) and leaves
files and printing to its caller. All randomness is a function of the seed and the step, so
the state after step t does not depend on how the steps were cut into dispatches, or on whether
the process was killed in between.
"""

from collections.abc import Callable, Iterator
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
from .build import Posterior, build_optimiser, check_data, check_posterior, usual_posterior
from .config import Config, GridConfig, OptimiserConfig, PriorConfig, TrainingConfig
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


class _Dispatch:
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
        transform = transform or build_optimiser(config.optimiser, config.training.steps)
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
                    changes, optimiser = transform.update(grads, optimiser, params)
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
    dispatch = _Dispatch(config, posterior, state.model, transform)
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
            dispatch = _Dispatch(config, posterior, model, transform)
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


def _copied(model: Any) -> Any:
    """The same model in arrays of its own, which survive the donation of buffers."""
    return jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array(leaf) else leaf, model)


@eqx.filter_jit
def _judged(posterior: Posterior, model: Any, x: Any, key: Any, memory: Any) -> Any:
    value, (info, memory) = posterior.objective(model, as_float(x), key, memory, 1.0)
    return {"loss": -value} | info, memory


class _Validation:
    """What the posterior says of examples that are not learned from, batch by batch.

    Every log step uses the same random numbers. Persistent chains have latents of their own here.
    """

    def __init__(self, x: np.ndarray, posterior: Posterior, model: Any, t: TrainingConfig) -> None:
        self.x, self.posterior, self.size = x, posterior, min(t.batch_size, len(x))
        self.key = jax.random.fold_in(jax.random.key(t.seed), 4)
        self.memory = posterior.memory(model, len(x), self.key)

    def __call__(self, model: Any) -> dict[str, float]:
        totals: dict[str, float] = {}
        batches = len(self.x) // self.size
        for i in range(batches):
            which = np.arange(i * self.size, (i + 1) * self.size)
            key = jax.random.fold_in(self.key, i)
            mine = rows(self.memory, which)
            found, kept = _judged(self.posterior, model, self.x[which], key, mine)
            if "chains" in kept:
                kept["chains"] = self.memory["chains"].at[which].set(kept["chains"])
            self.memory = kept
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + float(value) / batches
        return {f"validation_{name}": value for name, value in totals.items()}


def fit(
    model: AbstractModel,
    x: np.ndarray,
    *,
    posterior: Posterior | None = None,
    steps: int = 5000,
    batch_size: int = 100,
    optimiser: OptimiserConfig | optax.GradientTransformation | None = None,
    grid: GridConfig | None = None,
    seed: int = 0,
    log_every: int = 50,
    freeze_prior: bool = False,
    validation: np.ndarray | None = None,
    callback: Callable[[dict[str, float], Any], bool | None] | None = None,
) -> tuple[Any, list[dict[str, float]]]:
    """Train `model` on `x` in memory; return it ready to sample, and one record for each log step.

    `posterior` is how it learns, by default what is usual for such a model; with `freeze_prior` a
    KAEM keeps its prior, which may come from another model, and only its generator learns. `kaem
    train` does the same with a run folder, checkpoints and progress.

    **Arguments:** `optimiser` is any transformation of optax, or settings with a rate for the prior
    and one for the generator. `validation` are examples that are judged at every log step and not
    learned from: records then have `validation_loss` and the like. `callback(record, model)` is
    called at every log step, with the model in training (`model.prepared()` samples faster); if it
    returns True, training stops there.
    """
    own = isinstance(optimiser, optax.GradientTransformation)
    config = Config(
        optimiser=OptimiserConfig() if own or optimiser is None else optimiser,
        grid=grid or GridConfig(),
        prior=PriorConfig(frozen=freeze_prior),
        training=TrainingConfig(
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            log_every=log_every,
            checkpoint_every=log_every * max(1, steps // log_every),
            sample_every=steps,
        ),
    )
    x = _examples(x, "x", model, batch_size)
    model = _copied(model)
    posterior = posterior or usual_posterior(model)
    check_posterior(model, posterior)
    transform = _freezing(optimiser, freeze_prior) if own else None
    state = initial_state(model, posterior, config, len(x), transform)
    judge = None
    if validation is not None:
        held_out = _examples(validation, "validation", model, 1)
        judge = _Validation(held_out, posterior, state.model, config.training)
    history: list[dict[str, float]] = []
    for boundary in updates(state, x, posterior, config, transform):
        state = boundary.state
        if boundary.metrics is None:
            continue
        history.append({"step": state.step, **boundary.metrics})
        if judge is not None:
            history[-1] |= judge(state.model)
        if callback is not None and callback(dict(history[-1]), _copied(state.model)):
            break
    return state.model.prepared(), history


def _examples(x: Any, name: str, model: AbstractModel, batch_size: int) -> np.ndarray:
    """Data that the model can learn from, or an error that says what is wrong."""
    from ..data.images import checked

    given = np.asarray(x)
    found = checked(given, name)
    if given.shape[1:] == model.data_shape:  # [n, H, W] may be images without channels, or not
        found = found.reshape(given.shape)
    check_data(found, name, batch_size=batch_size, output=model.output, shape=model.data_shape)
    return found


def _freezing(transform: Any, frozen: bool) -> optax.GradientTransformation:
    """`transform`, which leaves a frozen prior alone whatever it does besides following gradients."""
    if not frozen:
        return transform

    def part(values: Parameters) -> dict[str, str]:
        return {name: "still" if name.startswith(".prior") else "moving" for name in values}

    return optax.multi_transform({"moving": transform, "still": optax.set_to_zero()}, part)
