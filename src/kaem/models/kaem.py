"""KAEM: a latent model whose prior is a product of learned one-dimensional densities."""

from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import UserError
from ..generators import AbstractGenerator
from ..learning import AbstractLearner, ImportanceSampling
from ..methods import ARGUMENT, compiled
from ..priors import AbstractPrior
from ._model import LatentModel

if TYPE_CHECKING:
    from ..training import Grid

_CHANGE = 0.01  # of what the model makes, that a grid update may cost


def _check_quantiles(model: Any, u: Any) -> None:
    if not isinstance(u, jax.core.Tracer) and not np.all(
        (np.asarray(u) >= 0) & (np.asarray(u) <= 1)
    ):
        raise ValueError(
            "quantiles u must be in [0, 1], one for each latent, got values from "
            f"{np.min(u):.4g} to {np.max(u):.4g}."
        )


class KAEM(LatentModel):
    """A Kolmogorov-Arnold energy model."""

    usual: ClassVar[dict[str, str]] = {
        "learner": "importance",
        "prior": "univariate",
        "generator": "kan",
    }
    about: ClassVar[str] = (
        "A Kolmogorov-Arnold energy model: its prior is a product of the one-dimensional densities below."
    )

    prior: AbstractPrior
    generator: AbstractGenerator
    noise: float = eqx.field(metadata=ARGUMENT, default=0.1)  # sigma, the likelihood's scale
    generator_noise: float = eqx.field(static=True, default=0.0)  # sigma_epsilon

    def usual_learner(self) -> AbstractLearner:
        return ImportanceSampling()

    @compiled(_check_quantiles)
    def generate(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return data points [..., *data_shape] of quantiles `u` [..., *prior.shape] in [0, 1]."""
        z = self.prior.inverse_cdf(u)
        x = self.decode(z.reshape(-1, *self.prior.shape))
        return x.reshape(*z.shape[: -len(self.prior.shape)], *self.data_shape)

    def prepared(self, tolerance: float = 2e-7, cells: int | None = None) -> Self:
        """Return this model with tables as fine as `tolerance` asks, and the generator's weights, made once.

        `cells` is their number where somebody has found it before.
        """
        prior = self.prior.prepared(tolerance, cells)
        return self._with_parts(prior, self.generator.prepared())

    def readable(self, purpose: str, images: bool = False) -> "KAEM":
        """Return this model with exact tables of its densities, or why `purpose` cannot be made of it.

        Samplers that pick a component first do not increase with u; quantiles here are always those
        of the densities that are drawn.
        """
        if images and (len(self.data_shape) != 3 or self.data_shape[-1] not in (1, 3)):
            raise UserError(
                f"{purpose} shows images [H, W, 1 or 3], but this model generates data of shape "
                f"{self.data_shape}; `influence` works for any data."
            )
        if self.prior.cached is not None and self.prior.inverse_transform == "exact":
            return self
        prior = self.prior.with_inverse_transform("exact").refined().cache()
        return eqx.tree_at(lambda m: m.prior, self, prior)

    def tended(
        self, tolerance: float, score_tolerance: float | None
    ) -> tuple[Self, dict[str, float], list[str]]:
        """Return the model with tables as fine as their errors ask, the errors, and what was done.

        The error of the score counts where chains follow it, that is, if it has a tolerance.
        """
        prior = self.prior
        if prior.inverse_transform == "paper":
            return self, {}, []
        seen = {"table_error": float(jnp.max(prior.table_error()))}
        if score_tolerance is not None:
            seen["score_error"] = float(jnp.max(prior.score_error()))
        # A comparison that is false for NaN: an error nobody can tell is one to refine for, too.
        good = seen["table_error"] <= tolerance
        if good and not seen.get("score_error", 0.0) > (score_tolerance or 0.0):
            return self, seen, []
        finer = prior.refined(tolerance, score_tolerance)
        if finer.cells == prior.cells:
            return self, seen, []
        error = (
            f"that of the score is {seen['score_error']:.1%}"
            if good
            else f"it had reached {seen['table_error']:.1e}"
        )
        note = f"tables refined from {prior.cells} to {finer.cells} cells for their error: {error}"
        return eqx.tree_at(lambda m: m.prior, self, finer), seen, [note]

    def regridded(self, key: PRNGKeyArray, grid: "Grid", *, new: bool) -> Self:
        """Return the same model on grids adapted to prior samples (Table hp-nist).

        A `new` model has nothing to lose yet; of another, hardly anything it makes may change.
        """
        z = self.prior.sample(key, grid.samples)
        change = None if new else _CHANGE
        return self._with_parts(
            self.prior.regrid(z, grid.ratio, change) if grid.prior else self.prior,
            self.generator.regrid(z, grid.ratio, change) if grid.generator else self.generator,
        )

    def form(self) -> dict[str, str]:
        return {"cells": str(self.prior.cells)}

    def with_form(self, form: dict[str, str]) -> Self:
        possible = {str(cells): cells for cells in self.prior.possible_cells()}
        if form.get("cells") not in possible:
            raise ValueError(f"tables of {form.get('cells', 'no')[:20]} cells")
        prior = self.prior.with_cells(possible[form["cells"]])
        return eqx.tree_at(lambda m: m.prior, self, prior)

    def file_notes(self) -> dict[str, str]:
        return self.prior.file_notes()

    def facts(self) -> list[tuple[str, str]]:
        return self.prior.facts()

    def with_prior(self, prior: AbstractPrior) -> Self:
        """Return this model with another prior of the same shape, ready to sample."""
        return eqx.tree_at(lambda m: m.prior, self, prior).prepared()
