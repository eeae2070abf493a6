r"""Gaussian radial basis functions: $B_g(z) = \exp\big(-\tfrac12 ((z - g)/(h_g\tau))^2\big)$.

$h_g$ is the grid's spacing around the centre $g$, so that neighbours keep overlapping when
the grid is no longer uniform; on a uniform grid it is the paper's constant $h$. The width
$\tau$ starts at 1 and is trained.
"""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array
from ..methods import FIXED
from ._basis import LinearBasis, Start, small_curve_coefficients, sum_over_samples, uniform_grid


class RBF(LinearBasis):
    """Gaussian bumps on a grid, with one trainable width."""

    grid: Float[Array, "P G"] = eqx.field(metadata=FIXED)
    coefficients: Float[Array, "Q P G"]
    log_tau: Float[Array, ""]

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        basis = cls(
            grid=uniform_grid(inputs, start.size + 1, start.interval),
            coefficients=as_array(np.zeros((outputs, inputs, start.size + 1))),
            log_tau=as_array(np.zeros(())),
        )
        coefficients = small_curve_coefficients(basis, rng, start)
        return eqx.tree_at(lambda b: b.coefficients, basis, coefficients)

    def features(self, x: Float[Array, " P"]) -> Float[Array, "P G"]:
        grid = jax.lax.stop_gradient(self.grid)
        inverse_width = jnp.exp(-self.log_tau) / spacing(grid)
        return jnp.exp(-0.5 * ((x[:, None] - grid) * inverse_width) ** 2)

    def feature_sums(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P G"]:
        return _feature_sums(self.log_tau, self.grid, z, weights)


@jax.custom_jvp
def _feature_sums(log_tau: Array, grid: Array, z: Array, weights: Array) -> Array:
    return _sums_and_slopes(log_tau, grid, z, weights)[0]


@_feature_sums.defjvp
def _feature_sums_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # One pass gives the sums and their slope in the only trained parameter; reverse mode
    # through the scan would store or recompute every exponential.
    sums, slopes = _sums_and_slopes(*primals)
    return sums, slopes * tangents[0]


def _sums_and_slopes(log_tau: Array, grid: Array, z: Array, weights: Array) -> tuple[Array, Array]:
    inverse_width = jnp.exp(-log_tau) / spacing(grid)

    def term(z: Array, weight: Array) -> tuple[Array, Array]:
        x2 = ((z[..., None] - grid) * inverse_width) ** 2
        bump = weight * jnp.exp(-0.5 * x2)
        return bump, bump * x2

    return sum_over_samples(term, z, weights)


def spacing(grid: Float[Array, "P G"]) -> Float[Array, "P G"]:
    """Return the mean distance [P, G] of each centre from its neighbours."""
    step = jnp.maximum(jnp.diff(grid, axis=1), 1e-6)
    inner = (step[:, 1:] + step[:, :-1]) / 2
    return jnp.concatenate([step[:, :1], inner, step[:, -1:]], axis=1)
