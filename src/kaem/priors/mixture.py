r"""The mixture prior: each coordinate is a mixture of $P$ learned one-dimensional densities.

$$p(z) = \prod_{q=1}^{Q} p_q(z_q),\qquad
p_q(z) = \sum_{p=1}^{P} \alpha_{q,p}\,\frac{e^{f_{q,p}(z)}\pi_0(z)}{Z_{q,p}}$$

(eq. kaem_mix). The components are normalised: eq. logprior_mix leaves $Z_{q,p}$ out of the
log-sum-exp, which weights a component by $\alpha_{q,p}Z_{q,p}$ in the likelihood but by
$\alpha_{q,p}$ in the sampler. $p_q$ is itself a one-dimensional density, so it is sampled by
inverting its own CDF: $Q$ tables, one uniform for each coordinate, $z_q(u_q)$ continuous and
increasing.

A wavelet differs from zero only near its centre, so its normaliser is an integral over a few
widths, $Z = \int\pi_0 + \int_{|z-\mu|\le r}(e^f - 1)\,\pi_0$, by Gauss-Legendre quadrature in a
window as wide as the wavelet: nothing has to be resolved on the scale of the domain.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases import Functions
from ..derived import Derived
from ..initialise import as_array
from ..methods import FIXED, modified
from ._family import new_family
from ._prior import AbstractPrior
from .inverse_transform import AbstractTable, PaperTable, Table, gauss_legendre

MixtureTransform = Literal["exact", "components", "paper"]
_LARGE = 60.0  # of an energy, whose exponential is still far from what float32 can hold
_HIGHEST = 80.0


class ComponentTables(eqx.Module):
    """The paper's sampler: pick a component by alpha, then invert that component's CDF.

    One uniform serves both: its place within the chosen component's share is uniform again.
    """

    tables: Table | PaperTable  # of the family (Q, P)
    shares: Float[Array, "Q P+1"]  # cumulated alpha

    def plus(self, warning: Float[Array, ""]) -> Self:
        """Return the same tables, as other tables do."""
        return eqx.tree_at(lambda t: t.tables, self, self.tables.plus(warning))

    def inverse_cdf(self, u: Float[Array, "Q n"]) -> Float[Array, "Q n"]:
        last = self.shares.shape[1] - 2
        p = jnp.sum(u[:, None, :] >= self.shares[:, 1:, None], axis=1)
        p = jnp.minimum(p, last)
        rows = jnp.arange(len(u))[:, None]
        below, above = self.shares[rows, p], self.shares[rows, p + 1]
        v = jnp.clip((u - below) / jnp.maximum(above - below, 1e-30), 0, 1)

        def some(pair: tuple[Array, Array]) -> Array:  # a table for each point: not for all at once
            p, v = (part[:, None] for part in pair)
            chosen = jax.tree.map(lambda leaf: leaf[rows, p], self.tables)
            return chosen.inverse_cdf(v[..., None])[:, 0, 0]

        return jax.lax.map(some, (p.T, v.T), batch_size=64).T

    def cdf(self, z: Float[Array, "Q n"]) -> Float[Array, "Q n"]:
        alpha = jnp.diff(self.shares)
        each = self.tables.cdf(jnp.broadcast_to(z[:, None, :], (*alpha.shape, z.shape[-1])))
        return jnp.sum(alpha[..., None] * each, axis=1)


class MixturePrior(AbstractPrior):
    """A product of Q mixtures, each of P learned one-dimensional densities."""

    transforms: ClassVar[tuple[str, ...]] = get_args(MixtureTransform)

    energies: Functions
    domain: Float[Array, "R 2"] = eqx.field(metadata=FIXED)
    cached: Derived | None
    shape: tuple[int, ...] = eqx.field(static=True)
    reference: str = eqx.field(static=True)
    cells: int = eqx.field(static=True)
    inverse_transform: str = eqx.field(static=True)
    logits: Float[Array, "Q P"] | None  # of alpha; None is uniform and not trained

    def __init__(
        self,
        latents: int,
        coordinates: int | None = None,
        *,
        key: PRNGKeyArray,
        proportions: Literal["uniform", "learned"] = "uniform",
        reference: str = "gaussian",
        domain: tuple[float, float] | None = (-12.0, 12.0),
        basis: str = "morlet",
        grid_size: int = 20,
        activation: str | None = None,
        cells: int = 512,
        inverse_transform: MixtureTransform = "exact",
        amplitude: float = 0.1,
        base_mean: float = 1.0,
        base_scale: float = 1.0,
        basis_scale: float = 1.0,
    ) -> None:
        r"""Make a new prior: `latents` is $P$, the components of a coordinate; `coordinates` is $Q$, by default $2P + 1$.

        **Arguments:** `proportions` are `uniform` (as in the paper) or `learned`;
        `inverse_transform` is `exact` (each coordinate's mixture CDF), `components` (the paper's
        component selection with exact tables) or `paper` (component selection with Algorithm 1);
        the rest is as in `UnivariatePrior`.
        """
        if proportions not in ("uniform", "learned"):
            raise ValueError(f"proportions must be 'uniform' or 'learned', got {proportions!r}.")
        q = 2 * latents + 1 if coordinates is None else coordinates
        fields = new_family(
            (q, latents),
            (q,),
            key=key,
            reference=reference,
            domain=domain,
            cells=cells,
            inverse_transform=inverse_transform,
            basis=basis,
            size=grid_size,
            activation=activation,
            amplitude=amplitude,
            base_mean=base_mean,
            base_scale=base_scale,
            basis_scale=basis_scale,
        )
        for name, value in fields.items():
            setattr(self, name, value)
        learned = proportions == "learned"
        self.logits = as_array(np.zeros((q, latents))) if learned else None

    def census(self) -> str:
        return f"{self.shape[0]} mixtures of {self.components}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"proportions": "uniform" if self.logits is None else "learned"}

    @property
    def components(self) -> int:
        """Return P, the number of components of each coordinate."""
        return self.energies.shape[1]

    @property
    def log_alpha(self) -> Float[Array, "Q P"]:
        if self.logits is None:
            return jnp.full((*self.shape, self.components), -np.log(self.components), jnp.float32)
        return jax.nn.log_softmax(self.logits, axis=-1)

    def _everywhere(self, nodes: Float[Array, "1 N"]) -> Float[Array, "P N"]:
        return jnp.broadcast_to(nodes, (self.components, nodes.shape[-1]))

    def _component_tables(self) -> Table:
        nodes = self._nodes(2 * self.cells + 1)
        values = self.energies.curves(self._everywhere(nodes)) + self.pi_0.log_density(nodes)
        return Table.build(*self._component_bounds(), values)

    def _component_bounds(self) -> tuple[Float[Array, "Q P"], Float[Array, "Q P"]]:
        lo, hi = (b[:, None] for b in self.bounds)
        family = (*self.shape, self.components)
        return jnp.broadcast_to(lo, family), jnp.broadcast_to(hi, family)

    def log_normaliser(self, log_density: Array | None = None) -> Float[Array, "Q P"]:
        del log_density  # of the mixture, not of its components
        if self.energies.window is None:
            return self._component_tables().log_normaliser
        centre, reach = self.energies.window
        lo, hi = jax.lax.stop_gradient(self.domain)[0]
        x, w = gauss_legendre(int(np.clip(self.cells // 8, 64, 512)))

        # On a domain far from where the reference has its mass, all is counted in units of e^level.
        edges = jnp.linspace(lo, hi, 17)
        level = jnp.minimum(jnp.max(self.pi_0.log_density(edges)) + _LARGE, 0)

        def weighted(left: Array, right: Array) -> tuple[Array, Any]:
            half = (right - left)[..., None] / 2
            z = left[..., None] + half * (1 + x)
            return z, w * half * jnp.exp(self.pi_0.log_density(z) - level)

        # The reference's own mass, in pieces that resolve it on any domain.
        reference = jnp.sum(weighted(edges[:-1], edges[1:])[1])
        left = jnp.clip(centre - reach, lo, hi)
        right = jnp.clip(centre + reach, lo, hi)
        z, mass = weighted(*jax.lax.stop_gradient((left, right)))
        f = jax.vmap(self.energies, in_axes=-1, out_axes=-1)(z)
        # A weight above 88 is more than exp can take: all is then counted in units of e^shift.
        shift = jax.lax.stop_gradient(jnp.maximum(jnp.max(f, axis=-1) - _LARGE, 0))
        unit = jnp.exp(-shift)
        excess = jnp.where(
            (shift > 0)[..., None],
            jnp.exp(f - shift[..., None]) - unit[..., None],
            jnp.expm1(jnp.minimum(f, _LARGE)),
        )
        total = reference * unit + jnp.sum(mass * excess, axis=-1)
        return jnp.log(jnp.maximum(total, 1e-30)) + (shift + level)

    def _log_ratio(self, nodes: Float[Array, "1 N"]) -> Float[Array, "Q N"]:
        offset = self.log_alpha - self.log_normaliser()
        level = jax.lax.stop_gradient(jnp.maximum(jnp.max(offset, axis=-1) - _LARGE, 0))
        # No maximum is subtracted, so that one pass over the wavelets will do: a normalised density
        # exceeds e^80 only where its normaliser missed a peak, which `table_error` then shows.
        offset = offset - level[:, None]
        log_terms = self.energies.curves(self._everywhere(nodes)) + offset[..., None]
        terms = jnp.exp(jnp.minimum(log_terms, _HIGHEST))
        # Summed by a matrix product: fused into a reduction, the wavelets would not vectorise.
        total = jnp.ones((*self.shape, 1, self.components)) @ terms
        return jnp.log(jnp.maximum(total[:, 0], 1e-30)) + level[:, None]

    def build_table(
        self, log_density: Float[Array, "Q 2K+1"] | None = None
    ) -> AbstractTable | ComponentTables:
        if self.inverse_transform == "exact":
            return self._exact_table(log_density)
        shares = jnp.pad(jnp.cumsum(jnp.exp(self.log_alpha), axis=1), ((0, 0), (1, 0)))
        if self.inverse_transform == "components":
            return ComponentTables(self._component_tables(), shares)
        nodes = self._gauss_nodes()
        values = self.energies.curves(self._everywhere(nodes)) + self.pi_0.log_density(nodes)
        return ComponentTables(PaperTable.build(*self._component_bounds(), values), shares)

    @eqx.filter_jit
    def table_error(self) -> Float[Array, " Q"]:
        """Return what other priors do, and that the components' normalisers agree with the table."""
        values = self.log_density_on_nodes()
        table = self._exact_table(values)
        return jnp.maximum(table.error(values), jnp.abs(jnp.expm1(table.log_normaliser)))

    def log_components(self, z: Float[Array, " Q"]) -> Float[Array, "Q P"]:
        r"""Return $\log\alpha_{q,p} + \log p_{q,p}(z_q)$ [Q, P] of one latent z [Q]."""
        spread = jnp.broadcast_to(z[:, None], (*self.shape, self.components))
        energy = self.energies(spread) + self.pi_0.log_density(z)[:, None]
        return self.log_alpha + energy - self.log_normaliser()

    @eqx.filter_jit
    def component_curves(self, points: int) -> Float[Array, "Q P N"]:
        r"""Return $\alpha_{q,p}\,p_{q,p}(z)$ on the nodes of `densities`."""
        grid = jnp.broadcast_to(self._nodes(points), (*self.shape, points))
        return jnp.exp(jax.vmap(self.log_components, in_axes=1, out_axes=2)(grid))

    def reordered(self, order: Sequence[int]) -> Self:
        logits = None if self.logits is None else self.logits[np.asarray(order)]
        return modified(super().reordered(order), logits=logits)

    def with_energies(self, energies: Any, reference: str) -> Self:
        """Return a prior with one component, of these energies, for each coordinate."""
        return modified(super().with_energies(energies, reference), logits=None)

    def _log_prob(self, z: Float[Array, " Q"]) -> Float[Array, " Q"]:
        return jax.nn.logsumexp(self.log_components(z), axis=-1)

    def expected_log_prob(
        self, z: Float[Array, "Q n"], weights: Float[Array, " n"], log_z: Float[Array, "Q P"]
    ) -> Float[Array, ""]:
        z, offset = jax.lax.stop_gradient(z), self.log_alpha - log_z

        def one(z: Float[Array, " Q"]) -> Float[Array, " Q"]:
            spread = jnp.broadcast_to(z[:, None], offset.shape)
            return jax.nn.logsumexp(self.energies(spread) + offset, axis=-1)

        ratio = jax.vmap(one, in_axes=-1, out_axes=-1)(z)
        value = jnp.sum((ratio + self.pi_0.log_density(z)) @ weights)
        return jnp.where(self._within(z, weights), value, -jnp.inf)
