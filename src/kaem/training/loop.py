r"""The training loop: many updates per dispatch, every event at a step known in advance.

`updates` yields at each boundary (a log, checkpoint, sample or grid step, or the end), and every few
seconds in between, and leaves files and printing to its caller: `fit` and run folders are two callers
of it. All randomness is a function of the key and the step, so the state after step t does not depend
on how the steps were cut into dispatches, or on whether the process was killed in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..data.rows import Examples
from ..models import AbstractModel, as_float
from ..processes import agreed
from .dispatch import Dispatch
from .optimiser import averages, begun_anew
from .parameters import is_frozen, parameters
from .plan import Plan, State
from .upkeep import carried, turned

_SECONDS = 5.0  # of updates in one dispatch, about: callers may want to stop in between


@dataclass(frozen=True)
class Boundary:
    """Where the loop stands after a dispatch; `metrics`, at log steps, are means since the last one."""

    state: State
    metrics: dict[str, float] | None
    notes: tuple[str, ...] = ()


def _aligned(state: State, data: Examples, plan: Plan) -> tuple[State, list[str]]:
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


def _focused(state: State, data: Examples, plan: Plan) -> State:
    """Return the state with the lens that suits what the model makes of examples."""
    key = jax.random.fold_in(plan.keyed(6), state.step)
    some = np.asarray(jax.random.permutation(key, len(data)))[: plan.upkeep.focused_examples]
    lens = state.best.focused(as_float(data[some]), key).lens
    return replace(state, model=eqx.tree_at(lambda model: model.lens, state.model, lens))


def updates(state: State, data: Examples, plan: Plan) -> Iterator[Boundary]:
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
            seconds = agreed(perf_counter() - began)
            most = max(1, int(_SECONDS * (state.step - before) / seconds))
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
