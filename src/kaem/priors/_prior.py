r"""What all priors share: a family of one-dimensional densities, each with its own table.

The family has the shape of one latent: (Q, P) for the univariate prior, (Q,) for the mixture.
Everything about a density is a one-dimensional integral, so nothing here is a Monte Carlo
estimate: $\log Z$, the CDF and its inverse, mean, entropy and mode.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..derived import Derived, follow, keep
from ..methods import check_count, compiled, modified
from ..parallel import of_batch
from ..serialisation import save
from ._family import MAX_CELLS, check_family
from ._latent import LatentPrior
from .inverse_transform import Table, gauss_legendre, open_uniform
from .potential import Potential
from .reference import REFERENCES, Reference

PAPER_NODES = 200  # Tables hp-nist and hp-cnn, GaussQuad_nodes


class Summary(NamedTuple):
    """What each density looks like, by quadrature; every field has the family's shape."""

    mean: Float[Array, "*family"]
    std: Float[Array, "*family"]
    entropy: Float[Array, "*family"]
    mode: Float[Array, "*family"]
    departure: Float[Array, "*family"]


class AbstractPrior(LatentPrior):
    """A product of learned one-dimensional densities."""

    energies: eqx.AbstractVar[Any]  # `Functions` or `ClosedForms`, Q x P of them
    domain: eqx.AbstractVar[Float[Array, "R 2"]]
    cached: eqx.AbstractVar[Derived | None]  # the table(s), built once; None while energies change
    reference: eqx.AbstractVar[str]
    cells: eqx.AbstractVar[int]
    inverse_transform: eqx.AbstractVar[str]
    transforms: eqx.AbstractClassVar[tuple[str, ...]]  # what `inverse_transform` may be

    def __check_init__(self) -> None:
        check_family(self)

    @property
    def pi_0(self) -> Reference:
        return REFERENCES[self.reference]

    @abstractmethod
    def _log_ratio(self, nodes: Float[Array, "R N"]) -> Float[Array, "*family N"]:
        r"""$\log(p/\pi_0)$ up to a constant, on nodes shared by the coordinates."""

    @abstractmethod
    def build_table(self, log_density: Float[Array, "*family 2K+1"] | None = None) -> Any:
        """Return what `inverse_cdf` needs; pass `log_density_on_nodes()` to share its cost."""

    @abstractmethod
    def log_normaliser(self, log_density: Array | None = None) -> Float[Array, "Q P"]:
        r"""Return $\log Z$ [Q, P] of every energy by quadrature; its gradient is the exact negative phase.

        Pass `log_density_on_nodes()` to share its cost.
        """

    @abstractmethod
    def expected_log_prob(
        self, z: Float[Array, "*family n"], weights: Float[Array, " n"], log_z: Float[Array, "Q P"]
    ) -> Float[Array, ""]:
        r"""Return $\sum_n w_n \log p(z_n)$ for fixed samples, on the last axis: the positive phase."""

    def mean_log_prob(
        self, z: Float[Array, "n ..."], key: PRNGKeyArray | None = None
    ) -> Float[Array, ""]:
        r"""Return $\frac1n\sum_n \log p(z_n)$ for fixed latents [n, *shape], differentiable in the energies.

        No `key` is needed here, where the negative phase is exact.
        """
        weights = jnp.full(len(z), 1 / len(z))
        return self.expected_log_prob(jnp.moveaxis(z, 0, -1), weights, self.log_normaliser())

    # Tables.

    @property
    def bounds(self) -> tuple[Float[Array, "*family"], Float[Array, "*family"]]:
        """Return the lower and upper ends of each density's domain, each [*shape]."""
        lo, hi = jax.lax.stop_gradient(self.domain).T
        return jnp.broadcast_to(lo, self.shape), jnp.broadcast_to(hi, self.shape)

    def _nodes(self, number: int) -> Float[Array, "R N"]:
        lo, hi = jax.lax.stop_gradient(self.domain).T
        return jnp.linspace(lo, hi, number, axis=1)

    def _gauss_nodes(self) -> Float[Array, "R N"]:
        """The 200 Gauss-Legendre nodes of Algorithm 1."""
        x, _ = gauss_legendre(PAPER_NODES)
        lo, hi = jax.lax.stop_gradient(self.domain).T
        return lo[:, None] + (hi - lo)[:, None] * (1 + x) / 2

    def _log_density(self, nodes: Float[Array, "R N"]) -> Float[Array, "*family N"]:
        return self._log_ratio(nodes) + self.pi_0.log_density(nodes)

    def log_density_on_nodes(self) -> Float[Array, "*family 2K+1"]:
        """Return the log-density, up to a constant, on all knots and midpoints of the tables."""
        return self._log_density(self._nodes(2 * self.cells + 1))

    def _exact_table(self, log_density: Float[Array, "*family 2K+1"] | None = None) -> Table:
        values = self.log_density_on_nodes() if log_density is None else log_density
        return Table.build(*self.bounds, values)

    @property
    def table(self) -> Any:
        """Return the cached table, or one built now; gradients in the energies are right in both cases."""
        if self.cached is None:
            return self.build_table()
        table, warning = follow(type(self).build_table, self.uncache(), self.cached)
        return table.plus(warning)

    def potential(self, log_density: Float[Array, "*family 2K+1"] | None = None) -> Potential:
        r"""Return $\log p$ and its score by table: one look-up for each latent in Langevin loops."""
        return Potential.build(*self.bounds, self._ratio(log_density), self.reference)

    def _ratio(self, log_density: Float[Array, "*family N"] | None) -> Float[Array, "*family N"]:
        r"""$\log(p/\pi_0)$ on all knots and midpoints, normalised."""
        values = self.log_density_on_nodes() if log_density is None else log_density
        nodes, table = self._nodes(2 * self.cells + 1), self._exact_table(values)
        return values - self.pi_0.log_density(nodes) - table.log_normaliser[..., None]

    def for_chains(self) -> tuple[Potential, Callable[[PRNGKeyArray, int], Float[Array, "n ..."]]]:
        """Return what chains need: the potential, and draws of `n` latents to start from, of one table."""
        prior = self.uncache()
        log_density = prior.log_density_on_nodes()
        table = prior.build_table(log_density)

        def draw(key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
            u = of_batch(lambda shape: open_uniform(key, shape), (*self.shape, n), axis=-1)
            return jnp.moveaxis(table.inverse_cdf(u), -1, 0)

        return prior.potential(log_density), draw

    @eqx.filter_jit
    def table_error(self) -> Float[Array, "*family"]:
        r"""Return the estimated $\sup_u|F(F^{-1}(u)) - u|$ of every table at the present resolution."""
        values = self.log_density_on_nodes()
        return self._exact_table(values).error(values)

    @eqx.filter_jit
    def score_error(self) -> Float[Array, "*family"]:
        """Return the estimated error of the tabulated score, as a share of the tilt of the reference."""
        ratio = self._ratio(None)
        return Potential.build(*self.bounds, ratio, self.reference).error(ratio)

    def refined(self, tolerance: float = 2e-7, score_tolerance: float | None = None) -> Self:
        """Return the same prior with as many cells as the tolerances ask for, at most 16,384.

        `tolerance` is for `table_error`; `score_tolerance`, where chains follow the score, for
        `score_error`. Doubling stops early where float32, not the number of cells, limits the error.
        """
        prior, error = self, float(jnp.max(self.table_error()))
        while error > tolerance and prior.cells < MAX_CELLS:
            finer = prior.with_cells(2 * prior.cells)
            finer_error = float(jnp.max(finer.table_error()))
            if finer_error > 0.7 * error and error < 1e-5:
                break
            prior, error = finer, finer_error
        if score_tolerance is None:
            return prior
        while float(jnp.max(prior.score_error())) > score_tolerance and prior.cells < MAX_CELLS:
            prior = prior.with_cells(2 * prior.cells)
        return prior

    def possible_cells(self) -> list[int]:
        """Return the numbers of cells that `refined` chooses from."""
        found = [self.cells]
        while found[-1] < MAX_CELLS:
            found.append(2 * found[-1])
        return found

    def with_cells(self, cells: int) -> Self:
        """Return the same prior at another table resolution (and no cached table)."""
        return modified(self.uncache(), cells=cells)

    def with_inverse_transform(self, name: str) -> Self:
        """Return the same densities, sampled in another way (and no cached table)."""
        return modified(self.uncache(), inverse_transform=name)

    def with_energies(self, energies: Any, reference: str) -> Self:
        """Return a prior of the same shape and domain with other energies over a `reference`."""
        return modified(self.uncache(), energies=energies, reference=reference)

    def reordered(self, order: Sequence[int]) -> Self:
        """Return the same densities with coordinates in another order: the first is now `order[0]`."""
        return modified(self.uncache(), energies=self.energies.reordered(order))

    def component_curves(self, points: int) -> Float[Array, "Q P N"] | None:
        """Return what sums to each density on the nodes of `densities`, where it is such a sum."""
        return None

    def _within(self, z: Float[Array, "*family n"], weights: Float[Array, " n"]) -> Array:
        """Whether all samples that carry weight are in the domain, on the last axis."""
        lo, hi = (bound[..., None] for bound in self.bounds)
        return ~jnp.any(((z < lo) | (z > hi)) & (weights > 0))

    def lost(self, z: Float[Array, "*n family"]) -> Float[Array, ""]:
        """Return the share of latents that are not finite, or farther off than three times the domain."""
        lo, hi = self.bounds
        return jnp.mean(~(jnp.abs(z - (lo + hi) / 2) <= 1.5 * (hi - lo)))

    def cache(self) -> Self:
        """Build the table once, for sampling.

        Losses of a cached prior have the right values and gradients; what is drawn from it, or
        measured, after its energies changed is NaN until it is cached anew, or `uncache` called.
        """
        made = keep(type(self).build_table, self.uncache())
        return eqx.tree_at(lambda p: p.cached, self, made, is_leaf=lambda leaf: leaf is None)

    def uncache(self) -> Self:
        """Drop the cached table: it is then built whenever it is needed."""
        return eqx.tree_at(lambda p: p.cached, self, None, is_leaf=lambda leaf: leaf is None)

    def prepared(self, tolerance: float = 2e-7, cells: int | None = None) -> Self:
        """Return this prior with its table built once, as fine as `tolerance` asks, or of `cells` cells."""
        prior = self.uncache()
        if cells is not None:
            prior = prior.with_cells(cells)
        elif prior.inverse_transform == "exact":
            prior = prior.refined(tolerance)
        return prior.cache()

    def trainable(self) -> Self:
        return self.uncache()

    def regrid(self, samples: Float[Array, "n ..."], ratio: float, change: float | None) -> Self:
        """Adapt grids of the energies to latent samples, where there are any."""
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor that say what form this prior has."""
        q, p = self.energies.shape
        return {
            "latents": p,
            "coordinates": q,
            "reference": self.reference,
            "domain": [float(self.domain.min()), float(self.domain.max())],
            "basis": self.energies.name,
            "activation": self.energies.activation,
            "cells": self.cells,
            "inverse_transform": self.inverse_transform,
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of this prior."""
        departure, error = self.summary().departure, float(jnp.max(self.table_error()))
        form = f"{self.census()} {self.energies.name} densities, reference {self.reference}"
        mean, most = (
            f"mean {float(departure.mean()):.3g}",
            f"largest {float(departure.max()):.3g} nats",
        )
        return [
            ("prior", form),
            ("tables", f"{self.cells} cells, estimated CDF error {error:.1e}"),
            ("departure", f"KL from the reference: {mean}, {most}"),
        ]

    @abstractmethod
    def census(self) -> str:
        """Return how many densities there are, in words."""

    def file_notes(self) -> dict[str, str]:
        """Return how many cells the tables need: found when saving, not at every loading."""
        exact = self.inverse_transform == "exact"
        return {"cells": str(self.refined().cells)} if exact else {}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the prior alone to one `.safetensors` file; `kaem.load_prior` reads it."""
        save(self, path, name="prior")

    # What users call.

    @abstractmethod
    def _log_prob(self, z: Float[Array, "*family"]) -> Float[Array, "*family"]:
        """Log-density of one latent by coordinates, within the domain."""

    @compiled()
    def log_prob(self, z: Float[Array, "*n family"]) -> Float[Array, "*n"]:
        """Return the log-density [*n] of latents z [*n, *shape]; -inf outside the domain."""
        lo, hi = self.bounds

        def one(z: Float[Array, "*family"]) -> Float[Array, ""]:
            return jnp.sum(jnp.where((z >= lo) & (z <= hi), self._log_prob(z), -jnp.inf))

        return self._vectorised(one, z, "z")

    @compiled()
    def score(self, z: Float[Array, "*n family"]) -> Float[Array, "*n family"]:
        r"""Return $\partial_z \log p(z)$ [*n, *shape] of latents z, coordinate by coordinate."""
        return self._vectorised(jax.grad(lambda z: jnp.sum(self._log_prob(z))), z, "z")

    @compiled()
    def cdf(self, z: Float[Array, "*n family"]) -> Float[Array, "*n family"]:
        """Return the quantiles [*n, *shape] of latents z [*n, *shape]; differentiable."""
        return self._tabulated(self.table.cdf, z, "z")

    @compiled()
    def inverse_cdf(self, u: Float[Array, "*n family"]) -> Float[Array, "*n family"]:
        """Return the latents [*n, *shape] of quantiles u [*n, *shape] in [0, 1]; differentiable."""
        return self._tabulated(self.table.inverse_cdf, u, "u")

    @compiled(check_count)
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """Draw `n` independent latents [n, *shape], exactly, in one pass."""
        return self.inverse_cdf(open_uniform(key, (n, *self.shape)))

    @eqx.filter_jit
    def summary(self) -> Summary:
        r"""Return mean, standard deviation, entropy, mode, and $\mathrm{KL}(p\,\|\,\pi_0)$ on the domain."""
        nodes = self._nodes(2 * self.cells + 1)
        values = self._log_density(nodes)
        reference = self.pi_0.log_density(nodes)
        weights = np.full(2 * self.cells + 1, 2.0)
        weights[1::2], weights[[0, -1]] = 4.0, 1.0
        h = nodes[:, 1:2] - nodes[:, :1]
        log_weights = jnp.log(jnp.asarray(weights / 3, jnp.float32) * h)
        log_z = jax.nn.logsumexp(values + log_weights, axis=-1, keepdims=True)
        log_p = values - log_z
        mass = jnp.exp(log_p + log_weights)
        mean = jnp.sum(mass * nodes, axis=-1)
        variance = jnp.sum(mass * (nodes - mean[..., None]) ** 2, axis=-1)
        log_pi = reference - jax.nn.logsumexp(reference + log_weights, axis=-1, keepdims=True)
        peak = jnp.argmax(values, axis=-1)[..., None]
        return Summary(
            mean=mean,
            std=jnp.sqrt(variance),
            entropy=-jnp.sum(mass * log_p, axis=-1),
            mode=jnp.take_along_axis(jnp.broadcast_to(nodes, values.shape), peak, axis=-1)[..., 0],
            departure=jnp.sum(mass * (log_p - log_pi), axis=-1),
        )

    @eqx.filter_jit
    def densities(self, points: int = 401) -> tuple[Float[Array, "R N"], Float[Array, "..."]]:
        """Return nodes [R, N] across the domain, and every density [*shape, N] on them: what to plot."""
        nodes = self._nodes(points)
        log_z = self._exact_table().log_normaliser
        return nodes, jnp.exp(self._log_density(nodes) - log_z[..., None])

    def mean(self) -> Float[Array, "*family"]:
        """Return the mean [*shape] of each density."""
        return self.summary().mean

    def std(self) -> Float[Array, "*family"]:
        """Return the standard deviation [*shape] of each density."""
        return self.summary().std

    def entropy(self) -> Float[Array, "*family"]:
        """Return the entropy [*shape] of each density, in nats."""
        return self.summary().entropy

    def mode(self) -> Float[Array, "*family"]:
        """Return the mode [*shape] of each density."""
        return self.summary().mode

    def _checked(self, x: Array, name: str) -> Array:
        x = jnp.asarray(x)
        if x.shape[-len(self.shape) :] != self.shape:
            axes = "(Q, P)" if len(self.shape) == 2 else "(Q,)"
            raise ValueError(
                f"{name} must end in the prior's shape {axes} = {self.shape}, got {x.shape}."
            )
        return x

    def _vectorised(self, function: Callable[[Array], Array], x: Array, name: str) -> Array:
        x = self._checked(x, name)
        for _ in range(x.ndim - len(self.shape)):
            function = jax.vmap(function)
        return function(x)

    def _tabulated(self, function: Callable[[Array], Array], x: Array, name: str) -> Array:
        x = self._checked(x, name)
        last = jnp.moveaxis(x.reshape(-1, *self.shape), 0, -1)
        return jnp.moveaxis(function(last), -1, 0).reshape(x.shape)
