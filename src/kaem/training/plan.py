"""What determines a training, and what changes in it."""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import optax
from jaxtyping import Array, PRNGKeyArray

from ..errors import UserError
from ..learning import AbstractLearner
from ..models import AbstractModel
from ..parallel import training_mesh
from .augmentation import Augmentation
from .optimiser import Adam, Optimiser, averages, transformation
from .parameters import Where, is_frozen, parameters, with_parameters, without
from .upkeep import Upkeep

PRECISIONS = ("float32", "bfloat16")


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
    precision: str = "float32"  # of what the generator computes in an update
    marks: tuple[int, ...] = ()  # further intervals at whose multiples the loop yields

    @property
    def transform(self) -> optax.GradientTransformation:
        return transformation(self.optimiser, self.steps)

    @property
    def halved(self) -> bool:
        """Return whether the generator computes in bfloat16."""
        return self.precision == "bfloat16"

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


def initial_state(model: AbstractModel, plan: Plan, examples: int) -> State:
    """Return the state before the first update, for `examples` training examples."""
    plan.learner.check(model)
    if plan.precision not in PRECISIONS:
        raise ValueError(f"precision must be {' or '.join(PRECISIONS)}, got {plan.precision!r}.")
    if plan.halved:
        model.halved()  # or it says why not
    training_mesh(plan.learner.splits(plan.batch_size))  # or it says why there is none
    model = model.trainable()
    memory = plan.learner.memory(model, examples, plan.keyed(3))
    plan.augmentation.check(model.data_shape, persistent="chains" in memory)
    return State(0, model, plan.start(model), memory)
