r"""The univariate prior: $Q \times P$ independent densities $p_{q,p}(z) = e^{f_{q,p}(z)}\pi_0(z)/Z_{q,p}$.

Each density lives on a stated domain $[z_{\min}, z_{\max}]$ (one for each input $p$) and everything
about it is a one-dimensional integral, so nothing here is a Monte Carlo estimate: $\log Z$ and
its gradient (the negative phase of contrastive divergence, since
$\mathbb{E}_{p}[\nabla f] = \nabla\log Z$), the CDF and its inverse, mean, entropy and mode.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases import Functions
from .inverse_transform import AbstractTable, PaperTable, Table, gauss_legendre
from .reference import REFERENCES, Reference

InverseTransform = Literal["exact", "paper"]
_PAPER_NODES = 200  # Table hp-nist, GaussQuad_nodes
_MAX_CELLS = 16384


class Summary(NamedTuple):
    """What each density looks like, by quadrature; every field has shape [Q, P]."""

    mean: Float[Array, "Q P"]
    std: Float[Array, "Q P"]
    entropy: Float[Array, "Q P"]
    mode: Float[Array, "Q P"]
    departure: Float[Array, "Q P"]


class UnivariatePrior(eqx.Module):
    """A product of Q x P learned one-dimensional densities."""

    energies: Functions
    domain: Float[Array, "P 2"]
    cached: AbstractTable | None
    shape: tuple[int, int] = eqx.field(static=True)
    reference: str = eqx.field(static=True)
    cells: int = eqx.field(static=True)
    inverse_transform: InverseTransform = eqx.field(static=True)

    def __init__(
        self,
        latents: int,
        coordinates: int | None = None,
        *,
        key: PRNGKeyArray,
        reference: str = "gaussian",
        domain: tuple[float, float] | None = None,
        basis: str = "rbf",
        grid_size: int = 20,
        activation: str | None = "relu",
        cells: int = 64,
        inverse_transform: InverseTransform = "exact",
        **initialisation: float,
    ) -> None:
        r"""`latents` is $P = n_z$; `coordinates` is $Q$, by default $2 n_z + 1$ as in KART.

        **Arguments:** `domain` defaults to the reference's own; `cells` is the starting
        resolution of the tables (see `refined`); `initialisation` goes to `Functions.init`.
        """
        if reference not in REFERENCES:
            raise ValueError(
                f"unknown reference {reference!r}; choose one of {', '.join(REFERENCES)}."
            )
        if inverse_transform not in ("exact", "paper"):
            raise ValueError(
                f"inverse_transform must be 'exact' or 'paper', got {inverse_transform!r}."
            )
        if cells < 4 or cells % 2:
            raise ValueError(f"cells must be an even number of at least 4, got {cells}.")
        lo, hi = REFERENCES[reference].domain if domain is None else domain
        support = REFERENCES[reference].support
        if not (np.isfinite([lo, hi]).all() and lo < hi and support[0] <= lo and hi <= support[1]):
            raise ValueError(
                f"the domain of a {reference} prior must be finite, increasing and within "
                f"{support}, got {(lo, hi)}."
            )
        q = 2 * latents + 1 if coordinates is None else coordinates
        self.energies = Functions.init(
            latents,
            q,
            key=key,
            basis=basis,
            size=grid_size,
            interval=(lo, hi),
            activation=activation,
            **initialisation,
        )
        self.domain = jnp.asarray(np.tile(np.array([lo, hi], np.float32), (latents, 1)))
        self.cached = None
        self.shape = (q, latents)
        self.reference = reference
        self.cells = cells
        self.inverse_transform = inverse_transform

    # One latent z of shape [Q, P] at a time; `log_prob` and friends vectorise.

    @property
    def pi_0(self) -> Reference:
        return REFERENCES[self.reference]

    def _bounds(self) -> tuple[Float[Array, "Q P"], Float[Array, "Q P"]]:
        lo, hi = jax.lax.stop_gradient(self.domain).T
        return jnp.broadcast_to(lo, self.shape), jnp.broadcast_to(hi, self.shape)

    def _log_density(self, nodes: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        """The unnormalised $f + \\log\\pi_0$ on nodes shared by the coordinates."""
        return self.energies.curves(nodes) + self.pi_0.log_density(nodes)

    def _nodes(self, number: int) -> Float[Array, "P N"]:
        lo, hi = jax.lax.stop_gradient(self.domain).T
        return jnp.linspace(lo, hi, number, axis=1)

    def log_density_on_nodes(self) -> Float[Array, "Q P 2K+1"]:
        """The unnormalised log-density on all knots and midpoints of the tables."""
        return self._log_density(self._nodes(2 * self.cells + 1))

    def build_table(self, log_density: Float[Array, "Q P 2K+1"] | None = None) -> AbstractTable:
        """The table of every coordinate; pass `log_density_on_nodes()` to share its cost."""
        if self.inverse_transform == "paper":
            x, _ = gauss_legendre(_PAPER_NODES)
            lo, hi = jax.lax.stop_gradient(self.domain).T
            nodes = lo[:, None] + (hi - lo)[:, None] * (1 + x) / 2
            return PaperTable.build(*self._bounds(), self._log_density(nodes))
        values = self.log_density_on_nodes() if log_density is None else log_density
        return Table.build(*self._bounds(), values)

    @property
    def table(self) -> AbstractTable:
        """The cached table, or one built now."""
        return self.build_table() if self.cached is None else self.cached

    # What users call.

    @eqx.filter_jit
    def log_prob(self, z: Float[Array, "*n Q P"]) -> Float[Array, "*n"]:
        """Log-density; -inf outside the domain."""
        log_z = self.log_normaliser()
        lo, hi = self._bounds()

        def one(z: Float[Array, "Q P"]) -> Float[Array, ""]:
            log_p = self.energies(z) + self.pi_0.log_density(z) - log_z
            inside = (z >= lo) & (z <= hi)
            return jnp.sum(jnp.where(inside, log_p, -jnp.inf))

        return self._vectorised(one, z, "z")

    @eqx.filter_jit
    def score(self, z: Float[Array, "*n Q P"]) -> Float[Array, "*n Q P"]:
        r"""$\partial_z \log p(z)$, coordinate by coordinate."""

        def one(z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
            return jax.grad(lambda z: jnp.sum(self.energies(z) + self.pi_0.log_density(z)))(z)

        return self._vectorised(one, z, "z")

    @eqx.filter_jit
    def cdf(self, z: Float[Array, "*n Q P"]) -> Float[Array, "*n Q P"]:
        return self._tabulated(self.table.cdf, z, "z")

    @eqx.filter_jit
    def inverse_cdf(self, u: Float[Array, "*n Q P"]) -> Float[Array, "*n Q P"]:
        return self._tabulated(self.table.inverse_cdf, u, "u")

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q P"]:
        """`n` independent latents, exactly, in one pass."""
        return self.inverse_cdf(jax.random.uniform(key, (n, *self.shape)))

    def expected_log_prob(
        self,
        z: Float[Array, "Q P n"],
        weights: Float[Array, " n"],
        log_normaliser: Float[Array, "Q P"],
    ) -> Float[Array, ""]:
        r"""$\sum_n w_n \log p(z_n)$ for fixed samples, on the last axis: the positive phase."""
        log_pi = jnp.sum(self.pi_0.log_density(z), axis=(0, 1)) @ weights
        energy = jnp.sum(self.energies.expectation(z, weights))
        return energy + log_pi - jnp.sum(weights) * jnp.sum(log_normaliser)

    def log_normaliser(self) -> Float[Array, "Q P"]:
        r"""$\log Z_{q,p}$ by quadrature; its gradient is the exact negative phase."""
        return self.table.log_normaliser

    @eqx.filter_jit
    def summary(self) -> Summary:
        r"""Mean, standard deviation, entropy, mode, and $\mathrm{KL}(p\,\|\,\pi_0)$ on the domain."""
        nodes = self._nodes(2 * self.cells + 1)
        values = self._log_density(nodes)
        reference = self.pi_0.log_density(nodes)
        weights = np.full(2 * self.cells + 1, 2.0)
        weights[1::2], weights[[0, -1]] = 4.0, 1.0
        log_weights = jnp.log(
            jnp.asarray(weights / 3, jnp.float32) * (nodes[:, 1:2] - nodes[:, :1])
        )
        log_z = jax.nn.logsumexp(values + log_weights, axis=-1, keepdims=True)
        log_p = values - log_z
        mass = jnp.exp(log_p + log_weights)
        mean = jnp.sum(mass * nodes, axis=-1)
        variance = jnp.sum(mass * (nodes - mean[..., None]) ** 2, axis=-1)
        log_pi = reference - jax.nn.logsumexp(reference + log_weights, axis=-1, keepdims=True)
        peak = jnp.argmax(values, axis=-1)
        return Summary(
            mean=mean,
            std=jnp.sqrt(variance),
            entropy=-jnp.sum(mass * log_p, axis=-1),
            mode=jnp.take_along_axis(
                jnp.broadcast_to(nodes, values.shape), peak[..., None], axis=-1
            )[..., 0],
            departure=jnp.sum(mass * (log_p - log_pi), axis=-1),
        )

    def mean(self) -> Float[Array, "Q P"]:
        return self.summary().mean

    def std(self) -> Float[Array, "Q P"]:
        return self.summary().std

    def entropy(self) -> Float[Array, "Q P"]:
        return self.summary().entropy

    def mode(self) -> Float[Array, "Q P"]:
        return self.summary().mode

    @eqx.filter_jit
    def table_error(self) -> Float[Array, "Q P"]:
        r"""Estimated $\sup_u|F(F^{-1}(u)) - u|$ of every table at the present resolution."""
        values = self.log_density_on_nodes()
        return Table.build(*self._bounds(), values).error(values)

    def refined(self, tolerance: float = 2e-7) -> Self:
        """The same prior with as many cells as `tolerance` asks for, at most 16,384.

        Doubling stops early where float32, not the number of cells, limits the error.
        """
        prior, error = self, float(jnp.max(self.table_error()))
        while error > tolerance and prior.cells < _MAX_CELLS:
            finer = prior.with_cells(2 * prior.cells)
            finer_error = float(jnp.max(finer.table_error()))
            if finer_error > 0.7 * error and error < 1e-5:
                break
            prior, error = finer, finer_error
        return prior

    def with_cells(self, cells: int) -> Self:
        """The same prior at another table resolution (and no cached table)."""
        copy = jax.tree.map(lambda leaf: leaf, self.uncache())
        object.__setattr__(copy, "cells", cells)
        return copy

    def cache(self) -> Self:
        """Build the table once, for sampling; call `uncache` before changing the energies."""
        table = eqx.filter_jit(UnivariatePrior.build_table)(self)
        return eqx.tree_at(lambda p: p.cached, self, table, is_leaf=lambda leaf: leaf is None)

    def uncache(self) -> Self:
        return eqx.tree_at(lambda p: p.cached, self, None, is_leaf=lambda leaf: leaf is None)

    def regrid(self, samples: Float[Array, "n Q P"], ratio: float = 0.05) -> Self:
        """Adapt the energies' grids to latent samples; the domain and the densities stay."""
        pooled = samples.reshape(-1, self.shape[1]).T
        return eqx.tree_at(
            lambda p: p.energies, self.uncache(), self.energies.regrid(pooled, ratio, self.domain)
        )

    def _checked(self, x: Array, name: str) -> Array:
        x = jnp.asarray(x)
        if x.shape[-2:] != self.shape:
            raise ValueError(
                f"{name} must end in the prior's shape (Q, P) = {self.shape}, got {x.shape}."
            )
        return x

    def _vectorised(self, function: Callable[[Array], Array], x: Array, name: str) -> Array:
        x = self._checked(x, name)
        for _ in range(x.ndim - 2):
            function = jax.vmap(function)
        return function(x)

    def _tabulated(self, function: Callable[[Array], Array], x: Array, name: str) -> Array:
        x = self._checked(x, name)
        last = jnp.moveaxis(x.reshape(-1, *self.shape), 0, -1)
        return jnp.moveaxis(function(last), -1, 0).reshape(x.shape)
