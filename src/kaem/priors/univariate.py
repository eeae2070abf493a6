r"""The univariate prior: $Q \times P$ independent densities $p_{q,p}(z) = e^{f_{q,p}(z)}\pi_0(z)/Z_{q,p}$.

Each density lives on a stated domain $[z_{\min}, z_{\max}]$, one for each input $p$. The negative
phase of contrastive divergence is exact, since $\mathbb{E}_{p}[\nabla f] = \nabla\log Z$.
"""

from typing import ClassVar, Literal, Self, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases import Functions
from ..derived import Derived
from ..methods import FIXED
from ._family import new_family
from ._prior import AbstractPrior
from .inverse_transform import AbstractTable, PaperTable

InverseTransform = Literal["exact", "paper"]


class UnivariatePrior(AbstractPrior):
    """A product of Q x P learned one-dimensional densities."""

    transforms: ClassVar[tuple[str, ...]] = get_args(InverseTransform)

    energies: Functions
    domain: Float[Array, "R 2"] = eqx.field(metadata=FIXED)
    cached: Derived | None
    shape: tuple[int, ...] = eqx.field(static=True)
    reference: str = eqx.field(static=True)
    cells: int = eqx.field(static=True)
    inverse_transform: str = eqx.field(static=True)

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
        amplitude: float = 0.1,
        base_mean: float = 1.0,
        base_scale: float = 1.0,
        basis_scale: float = 1.0,
    ) -> None:
        r"""Make a new prior: `latents` is $P = n_z$; `coordinates` is $Q$, by default $2 n_z + 1$ as in KART.

        **Arguments:** `domain` defaults to the reference's own; `cells` is the starting
        resolution of the tables (see `refined`); the last four are `Functions.init`'s.
        """
        q = 2 * latents + 1 if coordinates is None else coordinates
        fields = new_family(
            (q, latents),
            (q, latents),
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

    def census(self) -> str:
        q, p = self.shape
        return f"{q} x {p}"

    def _log_ratio(self, nodes: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        return self.energies.curves(nodes)

    def build_table(self, log_density: Float[Array, "Q P 2K+1"] | None = None) -> AbstractTable:
        if self.inverse_transform == "paper":
            return PaperTable.build(*self.bounds, self._log_density(self._gauss_nodes()))
        return self._exact_table(log_density)

    def log_normaliser(self, log_density: Array | None = None) -> Float[Array, "Q P"]:
        if log_density is None:
            return self.table.log_normaliser
        return self.build_table(log_density).log_normaliser

    def _log_prob(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        return self.energies(z) + self.pi_0.log_density(z) - self.log_normaliser()

    def expected_log_prob(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"], log_z: Float[Array, "Q P"]
    ) -> Float[Array, ""]:
        log_pi = jnp.sum(self.pi_0.log_density(z), axis=(0, 1)) @ weights
        energy = jnp.sum(self.energies.expectation(z, weights))
        value = energy + log_pi - jnp.sum(weights) * jnp.sum(log_z)
        return jnp.where(self._within(z, weights), value, -jnp.inf)

    def regrid(
        self, samples: Float[Array, "n Q P"], ratio: float = 0.05, change: float | None = 0.01
    ) -> Self:
        """Adapt the energies' grids to latent samples; the domain and the densities stay."""
        pooled = np.asarray(samples).reshape(-1, self.shape[1]).T
        moved = self.energies.regrid(pooled, ratio, self.domain, change)
        return eqx.tree_at(lambda p: p.energies, self.uncache(), moved)
