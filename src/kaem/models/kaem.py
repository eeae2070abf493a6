"""KAEM: a latent model whose prior is a product of learned one-dimensional densities."""

import dataclasses
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import UserError
from ..generators import AbstractGenerator
from ..layers import AbstractEncoder
from ..learning import AbstractLearner, Encoded, ImportanceSampling
from ..methods import ARGUMENT, compiled
from ..observation import Lens
from ..posterior.guess import Bent, Normal
from ..priors import AbstractPrior, AlignedPrior, MixturePrior
from ..priors.alignment import aligned, judged, mean_log_prob
from ._latent import LatentModel
from ._model import as_float

if TYPE_CHECKING:
    from ..training import Grid

_SOURCES: dict[str, Any] = {  # of aligned priors: unit variance, so that this is eight deviations
    "basis": "bspline",
    "grid_size": 40,
    "domain": (-8.0, 8.0),
    "cells": 128,
}
_CHUNK = 200  # examples encoded at once
_POINTS = 32  # of the prior, that coordinates are ordered by
_CHANGE = 0.01  # of what the model makes, that a grid update may cost


def _check_quantiles(model: Any, u: Any) -> None:
    if not isinstance(u, jax.core.Tracer) and not np.all(
        (np.asarray(u) >= 0) & (np.asarray(u) <= 1)
    ):
        raise ValueError(
            "quantiles u must be in [0, 1], one for each latent, got values from "
            f"{np.min(u):.4g} to {np.max(u):.4g}."
        )


@eqx.filter_jit
def _influence(model: "KAEM", u: Float[Array, "n Q"]) -> Float[Array, " Q"]:
    """Return how much of what is made varies with each coordinate, about the latents of quantiles u."""
    z, scale = model.prior.inverse_cdf(u), model.prior.std()
    decode = model.generator.decoder()

    def of(direction: Float[Array, " Q"]) -> Float[Array, ""]:
        return jnp.sum((decode(z + direction / 2) - decode(z - direction / 2)) ** 2)

    return jax.lax.map(of, jnp.diag(scale))


def _guessed(model: "KAEM", x: Float[Array, "n ..."], key: PRNGKeyArray) -> np.ndarray:
    """Return a draw of the encoder for each example, a few at a time."""
    rows = range(0, len(x), _CHUNK)
    size = min(_CHUNK, len(x))
    parts = [
        _drawn(model, x[np.arange(i, i + size) % len(x)], jax.random.fold_in(key, i)) for i in rows
    ]
    return np.concatenate([np.asarray(part) for part in parts])[: len(x)]


@eqx.filter_jit
def _drawn(model: "KAEM", x: Float[Array, "n ..."], key: PRNGKeyArray) -> Float[Array, "n ..."]:
    guess = model.encoded(x)
    assert guess is not None
    return guess.draw(key)


class KAEM(LatentModel):
    """A Kolmogorov-Arnold energy model."""

    usual: ClassVar[dict[str, str]] = {
        "learner": "importance",
        "prior": "univariate",
        "generator": "kan",
        "encoder": "none",
        "lens": "none",
    }
    about: ClassVar[str] = (
        "A Kolmogorov-Arnold energy model: its prior is a product of the one-dimensional densities below."
    )

    prior: AbstractPrior  # or an `AlignedPrior`, until `folded`
    generator: AbstractGenerator
    noise: float = eqx.field(metadata=ARGUMENT, default=0.1)  # sigma, the likelihood's scale
    generator_noise: float = eqx.field(static=True, default=0.0)  # sigma_epsilon
    encoder: AbstractEncoder | None = None  # for learning and inference; sampling needs none
    lens: Lens | None = None  # what the likelihood looks through; sampling needs none

    def __check_init__(self) -> None:
        if not hasattr(self.prior, "inverse_cdf"):
            raise ValueError(
                "a KAEM needs a prior of one-dimensional densities, such as a UnivariatePrior, a "
                f"MixturePrior or an AbstractPrior of your own, got a {type(self.prior).__name__}, which has "
                "no inverse_cdf; for any other density derive a model from kaem.models.LatentModel."
            )
        wanted = prod(self.prior.shape)
        if self.encoder is not None and self.encoder.latents != wanted:
            raise ValueError(
                f"the encoder describes {self.encoder.latents} latents, but the prior has {wanted} "
                f"(shape {self.prior.shape}); build both for the same number."
            )

    def usual_learner(self) -> AbstractLearner:
        return ImportanceSampling() if self.encoder is None else Encoded()

    def encoded(self, x: Float[Array, "n ..."]) -> Bent | None:
        r"""Return $q(z\mid x)$ for each example, if there is an encoder."""
        if self.encoder is None:
            return None
        if isinstance(self.prior, AlignedPrior):
            raise UserError(
                "the encoder of an aligned model describes latents before the map of its prior is part "
                "of the generator; ask `model.folded()`, which makes the same data."
            )
        normal = Normal(*self.encoder(as_float(x)))
        return Bent(normal, self.encoder.mixing_matrix, self.prior.bounds)

    def without_encoder(self) -> Self:
        """Return the same model, whose latents are then inferred by chains."""
        return dataclasses.replace(self, encoder=None)

    @compiled(_check_quantiles)
    def generate(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return data points [..., *data_shape] of quantiles `u` [..., *prior.shape] in [0, 1]."""
        z = self.prior.inverse_cdf(u)
        x = self.decode(z.reshape(-1, *self.prior.shape))
        return x.reshape(*z.shape[: -len(self.prior.shape)], *self.data_shape)

    def prepared(self, tolerance: float = 2e-7, cells: int | None = None) -> Self:
        """Return this model with tables as fine as `tolerance` asks, and the generator's weights, made once.

        `cells` is their number where somebody has found it before. A map of the prior is folded into
        the generator.
        """
        folded = self.folded()
        prior = folded.prior.prepared(tolerance, cells)
        return folded._with_parts(prior, folded.generator.prepared())

    def with_quantiles(self, purpose: str) -> LatentModel:
        if not self.prior.independent:
            raise UserError(
                f"{purpose} needs a prior with independent coordinates and known quantiles, which that of "
                "an aligned model has once its map is part of the generator: give `model.folded()`."
            )
        return self

    def aligned(self, latents: Float[Array, "n ..."]) -> Self:
        r"""Return this model with a prior fitted to `latents` of data, [n, *prior.shape]: $z = m + A s$.

        The coordinates $s$ are those in which the latents are most nearly independent, and each has a
        new density of splines, fitted to all of them at once. `folded` makes the map $A$, $m$ a part of
        the generator, whose first layer has to be linear; what is made of given latents stays the same.
        """
        if not self.generator.first_is_linear:
            self.generator.absorb(np.eye(1), np.zeros(1))  # which says why not
        model, z = self.folded(), np.asarray(latents, np.float64)
        if z.shape[1:] != self.prior.shape or len(z) < 2:
            raise ValueError(
                f"alignment needs at least two latents of shape {self.prior.shape}, got {z.shape}."
            )
        if z.ndim == 3:  # a linear layer sees their sums, and an encoder of all would see more
            model, z = model.without_encoder(), z.sum(axis=2)
        sources = MixturePrior(1, z.shape[1], key=jax.random.key(0), **_SOURCES)
        prior: Any = aligned(sources, z)
        return dataclasses.replace(model, prior=prior)

    def alignment(self, x: Float[Array, "n ..."], key: PRNGKeyArray) -> AlignedPrior | None:
        """Return this prior's densities, refitted where the encoder says that the latents of examples are.

        One latent in ten is not fitted. None where those are more likely as things are, where there is
        no encoder, or no linear layer that could take the map in.
        """
        can = self.generator.first_is_linear and len(self.prior.shape) == 1
        if self.encoder is None or not can:
            return None
        z = _guessed(self, x, key)
        kept, left_out = z[~judged(len(z))], z[judged(len(z))]
        found = aligned(self.prior, kept)
        better = mean_log_prob(found, left_out) > mean_log_prob(self.prior, left_out)
        return found if better else None

    def moved(self, alignment: AlignedPrior) -> Self:
        """Return the same model in the coordinates of an `alignment`, with the densities it has there."""
        prior: Any = alignment
        return dataclasses.replace(self, prior=prior).folded()

    def moved_gradients(self, alignment: AlignedPrior, squares: bool) -> Self:
        # The prior is refitted: where it is now, its gradients have been zero in the mean.
        arrays, rest = eqx.partition(self.prior, eqx.is_inexact_array)
        prior = self.prior if squares else eqx.combine(jax.tree.map(jnp.zeros_like, arrays), rest)
        generator = self.generator.absorb_in_gradients(alignment.mixing, alignment.offset, squares)
        return self._with_parts(prior, generator)

    def folded(self) -> Self:
        """Return the same model with a prior of independent coordinates, its map being the generator's.

        The same quantiles make the same data; latents z of this model are `prior.unmixed(z)` of that. A
        model whose prior is not aligned is returned as it is.
        """
        if not isinstance(self.prior, AlignedPrior):
            return self
        mixing, offset = (
            np.asarray(part, float) for part in (self.prior.mixing, self.prior.offset)
        )
        parts: dict[str, Any] = {
            "prior": self.prior.sources,
            "generator": self.generator.absorb(mixing, offset),
        }
        if self.encoder is not None:
            parts["encoder"] = self.encoder.remapped(np.linalg.inv(mixing), offset)
        return dataclasses.replace(self, **parts)

    def _unfolded(self, latents: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        prior: Any = self.prior
        return (
            np.asarray(prior.mixed(jnp.asarray(latents)))
            if isinstance(prior, AlignedPrior)
            else latents
        )

    def finished(self) -> Self:
        """Return the model as it is saved after training: folded, and with an encoder, ordered."""
        folded = self.folded()
        can = folded.generator.first_is_linear and len(folded.prior.shape) == 1
        return folded.ordered() if can and folded.encoder is not None else folded

    def ordered(self) -> Self:
        """Return the same model, its coordinates ordered by their influence on what is made.

        Influence is the mean square of what changes when a coordinate moves by its standard deviation.
        Only of generators whose first layer is linear, and priors of shape (Q,). An ordered model
        stays as it is.
        """
        folded = self.folded()
        if len(folded.prior.shape) != 1:
            raise UserError(
                f"coordinates can be ordered of a prior of shape (Q,), got {folded.prior.shape}; use a "
                "MixturePrior (prior.kind = mixture)."
            )
        coordinates = folded.prior.shape[0]
        # First by the medians, where all coordinates are treated alike: points are then given to
        # coordinates by what these are, and not by where they happened to be.
        first = folded._by_influence(np.full((1, coordinates), 0.5))
        ranks = np.random.default_rng(0).permuted(
            np.tile(np.arange(_POINTS), (coordinates, 1)), axis=1
        )
        return first._by_influence((ranks.T + 0.5) / _POINTS)

    def _by_influence(self, u: Float[np.ndarray, "n Q"]) -> Self:
        order = np.argsort(-np.asarray(_influence(self, jnp.asarray(u))), kind="stable")
        turned = np.eye(len(order))[:, order]  # z = turned @ s: s_0 is z[order[0]]
        parts: dict[str, Any] = {
            "prior": self.prior.reordered(order.tolist()),
            "generator": self.generator.absorb(turned, np.zeros(len(order))),
        }
        if self.encoder is not None:
            parts["encoder"] = self.encoder.remapped(turned.T, np.zeros(len(order)))
        return dataclasses.replace(self, **parts)

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
        model = self.folded()
        if model.prior.cached is not None and model.prior.inverse_transform == "exact":
            return model
        prior = model.prior.with_inverse_transform("exact").refined().cache()
        return eqx.tree_at(lambda m: m.prior, model, prior)

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
        return self.prior.facts() + ([] if self.lens is None else self.lens.facts())

    def with_prior(self, prior: AbstractPrior) -> Self:
        """Return this model with another prior of the same shape, ready to sample."""
        found = getattr(prior, "shape", None)
        if found != self.prior.shape:
            raise ValueError(
                f"the prior of this model has latents of shape {self.prior.shape}, got a "
                f"{type(prior).__name__} of shape {found}; give one of the same shape, or build a new "
                "KAEM of it."
            )
        return dataclasses.replace(self, prior=prior).prepared()
