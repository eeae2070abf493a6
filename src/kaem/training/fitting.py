"""Training in memory: any model, any learner, any optimiser, judged on held-out examples."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ..data.checks import checked, trainable_on
from ..data.rows import Examples
from ..learning import AbstractLearner
from ..models import AbstractModel, as_float
from .augmentation import Augmentation
from .dispatch import rows
from .loop import updates
from .optimiser import Adam, Optimiser
from .parameters import Where
from .plan import Plan, initial_state
from .upkeep import Upkeep, is_new


def _copied(model: Any) -> Any:
    """The same model in arrays of its own, which survive the donation of buffers."""
    return jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array(leaf) else leaf, model)


@eqx.filter_jit
def _judged(learner: AbstractLearner, model: Any, x: Any, key: Any, memory: Any) -> Any:
    value, (info, memory) = learner.objective(model, as_float(x), key, memory, 1.0)
    return {"loss": -value} | info, memory


class _Validation:
    """What the learner says of examples that are not learned from, batch by batch.

    Every log step uses the same random numbers. Persistent chains have latents of their own here.
    """

    def __init__(self, x: Examples, plan: Plan, model: Any) -> None:
        self.x, self.learner, self.size = x, plan.learner, min(plan.batch_size, len(x))
        self.key = plan.keyed(4)
        self.memory = self.learner.memory(model, len(x), self.key)

    def __call__(self, model: Any) -> dict[str, float]:
        totals: dict[str, float] = {}
        for i in range(-(-len(self.x) // self.size)):
            which = np.arange(i * self.size, min((i + 1) * self.size, len(self.x)))
            key = jax.random.fold_in(self.key, i)
            mine = rows(self.memory, which)
            found, kept = _judged(self.learner, model, self.x[which], key, mine)
            if "chains" in kept:
                kept["chains"] = self.memory["chains"].at[which].set(kept["chains"])
            self.memory = kept
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + float(value) * len(which) / len(self.x)
        return {f"validation_{name}": value for name, value in totals.items()}


def fit(
    model: AbstractModel,
    x: Examples,
    *,
    key: PRNGKeyArray,
    learner: AbstractLearner | None = None,
    steps: int = 5000,
    batch_size: int = 100,
    optimiser: Optimiser | None = None,
    upkeep: Upkeep | None = None,
    augmentation: Augmentation | None = None,
    freeze: Where | None = None,
    log_every: int = 50,
    precision: str = "float32",
    validation: Examples | None = None,
    callback: Callable[[dict[str, Any], Any], bool | None] | None = None,
) -> tuple[Any, list[dict[str, Any]]]:
    """Train `model` on examples `x` [n, *data_shape], in memory or as `kaem.data.load(..., memory=...)` has them.

    Returns the model, ready to sample, and one record for each log step. `kaem.train` does the same,
    by the same code, with a run folder, checkpoints and progress: the same objects, data and key give
    the same bits.

    **Arguments:** `learner` is how it learns, by default what is usual for such a model. `optimiser` is
    any transformation of optax, or `kaem.Adam(prior_rate=..., generator_rate=...)`. `upkeep` says how
    fine tables are kept and when grids move, `augmentation` how images vary from visit to visit. `freeze`
    selects a part of the model that is not trained, such as `lambda model: model.prior`, which may come
    from another model. With the `precision` "bfloat16" the generator computes in that while it learns; its
    weights, the prior and losses are float32. `validation` are examples that are judged at every log step and not learned from: records then have `validation_loss` and the
    like. `callback(record, model)` is called at every log step, with the model in training
    (`model.prepared()` samples faster); if it returns True, training stops there. What was done on the
    way, such as refining tables, is told in the `notes` of a record.
    """
    if optimiser is not None and not (
        isinstance(optimiser, Adam) or (hasattr(optimiser, "init") and hasattr(optimiser, "update"))
    ):
        raise ValueError(
            "optimiser must be a transformation of optax, such as optax.adam(1e-3), or a kaem.Adam, "
            f"got {optimiser!r}."
        )
    if steps < 1 or batch_size < 1 or log_every < 1:
        raise ValueError(
            "training needs steps, batch_size and log_every of at least 1, got "
            f"{steps}, {batch_size} and {log_every}."
        )
    if freeze is not None and not _selects(freeze, model):
        raise ValueError(
            "freeze must be a function that selects arrays of the model, such as `lambda model: "
            f"model.prior`; {freeze!r} selects none."
        )
    x = _examples(x, "x", model, batch_size)
    model = _copied(model)
    plan = Plan(
        learner=learner or model.usual_learner(),
        key=key,
        steps=steps,
        batch_size=batch_size,
        optimiser=optimiser or Adam(),
        upkeep=upkeep or Upkeep(),
        augmentation=augmentation or Augmentation(),
        freeze=freeze,
        new=is_new(model),
        log_every=log_every,
        precision=precision,
    )
    state = initial_state(model, plan, len(x))
    judge = None
    if validation is not None:
        judge = _Validation(_examples(validation, "validation", model, 1), plan, state.model)
    history: list[dict[str, Any]] = []
    for boundary in updates(state, x, plan):
        state = boundary.state
        if boundary.metrics is None:
            continue
        history.append({"step": state.step, **boundary.metrics})
        if judge is not None:
            history[-1] |= judge(state.best)
        if boundary.notes:
            history[-1]["notes"] = list(boundary.notes)
        if callback is not None and callback(dict(history[-1]), _copied(state.best)):
            break
    return plan.finished(state.best).prepared(), history


def _selects(freeze: Any, model: AbstractModel) -> bool:
    """Whether `freeze` selects arrays that could be trained."""
    own = {id(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))}
    return callable(freeze) and any(id(leaf) in own for leaf in jax.tree.leaves(freeze(model)))


def _examples(x: Any, name: str, model: AbstractModel, batch_size: int) -> Examples:
    """Return data that the model can learn from, or say what is wrong; on disk it stays there."""
    given = x if hasattr(x, "layout") else np.asarray(x)
    found = checked(given, name)
    if given.shape[1:] == model.data_shape:  # [n, H, W] may be images without channels, or not
        found = found.reshape(given.shape)
    trainable_on(found, name, batch_size=batch_size, output=model.output, shape=model.data_shape)
    return found
