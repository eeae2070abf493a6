"""Training in memory: any model, any posterior, any optimiser, judged on held-out examples."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..model import AbstractModel, as_float
from .build import Posterior, check_data, check_posterior, usual_posterior
from .config import Config, GridConfig, OptimiserConfig, PriorConfig, TrainingConfig
from .loop import Parameters, initial_state, rows, updates


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
    own = optimiser is not None and not isinstance(optimiser, OptimiserConfig)
    if own and not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise ValueError(
            "optimiser must be a transformation of optax, such as optax.adam(1e-3), or an "
            f"OptimiserConfig, got {optimiser!r}."
        )
    config = Config(
        optimiser=optimiser if isinstance(optimiser, OptimiserConfig) else OptimiserConfig(),
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
