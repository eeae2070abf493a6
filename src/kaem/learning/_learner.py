"""What the training loop asks of a way to learn."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..errors import UserError

Memory = dict[str, Array]
Info = dict[str, Array]
Objective = tuple[Array, tuple[Info, Memory]]


class AbstractLearner(eqx.Module):
    """How a model learns: what is maximised on a batch, and what is kept between updates."""

    @property
    @abstractmethod
    def info_names(self) -> tuple[str, ...]:
        """Return the names of what `objective` reports of an update."""

    @abstractmethod
    def objective(
        self, model: Any, x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        """Return the value to maximise on a batch `x` [B, ...], what was seen, and what to keep.

        **Arguments:** `memory` is what `memory` or the update before returned, with the rows of this
        batch's examples for `chains`; `progress` is the share of updates done.
        """

    def memory(self, model: Any, examples: int, key: PRNGKeyArray) -> Memory:
        """Return what is kept between updates: nothing, unless a learner says otherwise.

        Of what goes by the name `chains`, rows belong to the `examples` of the training data.
        """
        return {}

    def check(self, model: Any) -> None:
        """Raise unless `model` can learn in this way."""

    def splits(self, batch: int) -> int:
        """Return a number that as many devices must divide as can share an update of a `batch`."""
        return batch

    @property
    def follows_score(self) -> bool:
        """Return whether a prior's tabulated score, and not only its CDF, has to be right."""
        return False

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """Return what an update that failed needs, if this can tell."""
        return None

    def advice(self, metrics: dict[str, float]) -> str | None:
        """Return what a user should know about learning that goes badly."""
        return None

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        """Return what a report says of how a model learned, given the last metrics it logged."""
        return []

    def _guess(self, model: Any) -> Any:
        """Return what a model says of the latents of an example, in shapes only; None if it says nothing."""
        if not hasattr(model, "encoded"):
            return None
        one = jax.ShapeDtypeStruct((1, *model.data_shape), jnp.float32)
        return eqx.filter_eval_shape(model.encoded, one)

    def _leaves_no_encoder(self, model: Any) -> None:
        """Raise if a model has an encoder, which this learner would leave behind what it learns."""
        if getattr(model, "encoder", None) is not None:
            raise UserError(
                f"{type(self).__name__} does not train the encoder that this {type(model).__name__} has, "
                "which would then explain examples by what the model used to be: learn by "
                f"{type(model.usual_learner()).__name__}, or leave the encoder out (of a KAEM by "
                "`model.without_encoder()`)."
            )

    def _folded(self, model: Any) -> None:
        """Raise if the prior of a model has a map that is to become a part of the generator first."""
        if hasattr(model, "folded") and model.folded() is not model:
            raise UserError(
                f"{type(self).__name__} trains priors of independent coordinates, which that of an aligned "
                "model has once its map is part of the generator: train `model.folded()`."
            )

    def _needs(self, model: Any, fits: bool, what: str) -> None:
        if not fits:
            raise UserError(
                f"{type(self).__name__} needs {what}, which a {type(model).__name__} has not; it "
                f"usually learns by {type(model.usual_learner()).__name__}."
            )


def number(last: dict[str, Any], name: str, form: str) -> str:
    """Return a logged number as text."""
    return format(last.get(name, float("nan")), form)
