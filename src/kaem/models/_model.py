"""What a model is, and what training, files, figures and commands ask of one."""

from abc import abstractmethod
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import UserError
from ..learning import AbstractLearner
from ..serialisation import save

if TYPE_CHECKING:
    from ..training import Grid
    from ._latent import LatentModel
    from .kaem import KAEM


def as_float(x: Array) -> Float[Array, "..."]:
    """Return pixels in [0, 1] of bytes, and floats as they are."""
    x = jnp.asarray(x)
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


class AbstractModel(eqx.Module):
    """What training, files and commands ask of a model.

    `usual` says which settings a model of this class has, and their usual kinds: `learner`, and the
    parts that its constructor takes, such as `prior` and `generator`.
    """

    usual: ClassVar[dict[str, str]]
    about: ClassVar[str] = ""  # a sentence for reports: what such a model is

    @property
    @abstractmethod
    def data_shape(self) -> tuple[int, ...]:
        """Return the shape of one example."""

    @property
    @abstractmethod
    def output(self) -> str:
        """Return `sigmoid` where data are in [0, 1], or `identity`."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """Draw `n` new data points [n, *data_shape]."""

    @abstractmethod
    def usual_learner(self) -> AbstractLearner:
        """Return how such a model learns unless one says otherwise."""

    # What only some models have; others say so.

    def with_latents(self, purpose: str) -> "LatentModel":
        """Return this model if it has latents; else raise, saying that `purpose` needs them."""
        raise UserError(
            f"{purpose} needs a model with latents, which a {type(self).__name__} has not; give a KAEM, "
            "a VAE or a neural energy model, or compare its samples with data (FID, KID)."
        )

    def with_quantiles(self, purpose: str) -> "LatentModel":
        """Return this model if its latents are independent, with known quantiles; else raise."""
        raise UserError(
            f"{purpose} needs a prior with independent coordinates and known quantiles, which a "
            f"{type(self).__name__} has not; give a KAEM or a VAE."
        )

    def readable(self, purpose: str, images: bool = False) -> "KAEM":
        """Return this model with exact tables of its densities, or raise, saying what `purpose` needs."""
        raise UserError(
            f"{purpose} needs a KAEM, whose prior is a product of learned one-dimensional densities; "
            f"got a {type(self).__name__}. Choose a run that trained a KAEM."
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of this model beyond its class: names and sentences."""
        return []

    # The states of a model.

    def prepared(self) -> Self:
        """Return this model, ready to sample as fast and as exactly as it can."""
        return self

    def trainable(self) -> Self:
        """Return this model without anything that goes stale when its parameters change."""
        return self

    def halved(self) -> Self:
        """Return this model with a generator that computes in bfloat16, for updates."""
        raise UserError(
            f"a {type(self).__name__} has no generator that could compute in bfloat16; leave "
            "training.precision = float32."
        )

    def finished(self) -> Self:
        """Return the model as it is to be saved and used after training."""
        return self

    def alignment(self, x: Float[Array, "n ..."], key: PRNGKeyArray) -> Any:
        """Return where the prior should be for the latents of examples; None where nothing can move it."""
        return None

    def focused(self, x: Float[Array, "n ..."], key: PRNGKeyArray) -> Self:
        """Return the model with its lens adjusted to examples, where it has one."""
        return self

    def moved(self, alignment: Any) -> Self:
        """Return the same model in the coordinates of an `alignment`, with the prior that belongs there."""
        return self

    def moved_gradients(self, alignment: Any, squares: bool) -> Self:
        """Return running means of gradients, or of their squares, in the coordinates of an `alignment`.

        They come, and are returned, in the places of the parameters of a model.
        """
        return self

    def tended(
        self, tolerance: float, score_tolerance: float | None
    ) -> tuple[Self, dict[str, float], list[str]]:
        """Return the model after upkeep between updates, what was measured, and what was done."""
        return self, {}, []

    def regridded(self, key: PRNGKeyArray, grid: "Grid", *, new: bool) -> Self:
        """Return the model on grids adapted to its latents, where it has any."""
        return self

    def form(self) -> dict[str, str]:
        """Return what a checkpoint must know beside arrays to restore this model from a new one."""
        return {}

    def with_form(self, form: dict[str, str]) -> Self:
        """Return this model in the `form` of a checkpoint, or raise ValueError."""
        return self

    def file_notes(self) -> dict[str, str]:
        """Return what a model file says beside structure and arrays."""
        return {}

    def faster(self, steps: int) -> tuple[Self, float]:
        """Return a model whose samples cost a fraction of this one's, and how many times they do.

        Only for timing: models that sample in many like steps are timed over `steps` of them.
        """
        return self, 1.0

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one `.safetensors` file, atomically."""
        save(self, path)
