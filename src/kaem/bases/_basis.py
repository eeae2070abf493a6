r"""Banks of univariate functions $f_{q,p}:\mathbb{R}\to\mathbb{R}$, $q\le Q$, $p\le P$.

A Kolmogorov-Arnold layer with $P$ inputs and $Q$ outputs, and a KAEM prior with
energies $f_{q,p}$, are the same object evaluated in three ways:

- `bank(z)`         $f_{q,p}(z_{q,p})$, every function at its own point (the log-prior);
- `bank.curves(x)`  $f_{q,p}(x_{p,n})$, all functions of input $p$ on shared nodes (tables);
- `bank.layer(x)`   $\sum_p f_{q,p}(x_p)$ (the generator).

Grids belong to the input $p$ and are shared by its $Q$ functions, so that a basis is
evaluated once per input and `layer` and `curves` are matrix products.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array, glorot
from ._grid import Bounds, Samples, features_on, least_squares, regrid

_BLOCK = 10  # samples for each pass over the accumulators of `sum_over_samples`


class Start(NamedTuple):
    """How new functions begin: Table hp-nist's names stand in `Functions.init`."""

    size: int  # grid intervals, degrees or harmonics
    interval: tuple[float, float]
    amplitude: float
    scale: float


class AbstractBasis(eqx.Module):
    """A bank of Q x P functions in one basis, without the base-activation branch."""

    @classmethod
    @abstractmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        """Return a new bank of Q = `outputs` times P = `inputs` small functions."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return (Q, P)."""

    @abstractmethod
    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        """Return each function [Q, P] at its own point of z [Q, P]."""

    @abstractmethod
    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        """Return all functions of input p on the nodes x [P, N] of p, as [Q, P, N]."""

    @abstractmethod
    def layer(self, x: Float[Array, " P"]) -> Float[Array, " Q"]:
        """Return the sums [Q] over inputs x [P], as in a Kolmogorov-Arnold layer."""

    @property
    def window(self) -> tuple[Array, Array] | None:
        """Return where functions differ from zero: centres and reaches [Q, P]; None is everywhere."""
        return None

    def expectation(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P"]:
        r"""Return $\sum_n w_n f_{q,p}(z_n)$ [Q, P] of samples [Q, P, n] that are not differentiated."""
        return jax.vmap(self, in_axes=-1, out_axes=-1)(jax.lax.stop_gradient(z)) @ weights

    def regrid(self, samples: Samples, ratio: float, bounds: Bounds, change: float | None) -> Self:
        """Adapt to where the inputs are, preserving the functions. Wavelets learn theirs."""
        return self

    def reordered(self, order: Sequence[int]) -> Self:
        """Return the functions of the outputs in another order: the first of the new is `order[0]`."""

        def chosen(path: Any, leaf: Any) -> Any:
            own = path[-1].name != "grid" and leaf.shape[:2] == self.shape
            return leaf[np.asarray(order)] if own else leaf

        arrays, rest = eqx.partition(self, eqx.is_array)
        return eqx.combine(jax.tree_util.tree_map_with_path(chosen, arrays), rest)


class LinearBasis(AbstractBasis):
    r"""$f_{q,p}(z) = \sum_g c_{q,p,g}\, B_g(z; \mathrm{grid}_p)$: linear in the coefficients."""

    grid: eqx.AbstractVar[Float[Array, "P G"]]
    coefficients: eqx.AbstractVar[Float[Array, "Q P B"]]

    @abstractmethod
    def features(self, x: Float[Array, " P"]) -> Float[Array, "P B"]:
        """Return the basis functions [P, B] of every input at one point x [P] each."""

    @property
    def shape(self) -> tuple[int, int]:
        q, p, _ = self.coefficients.shape
        return q, p

    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        return jnp.sum(jax.vmap(self.features)(z) * self.coefficients, axis=-1)

    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        features = jax.vmap(self.features, in_axes=1)(x)
        return jnp.einsum("npb,qpb->qpn", features, self.coefficients)

    def layer(self, x: Float[Array, " P"]) -> Float[Array, " Q"]:
        return jnp.einsum("pb,qpb->q", self.features(x), self.coefficients)

    def feature_sums(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P B"]:
        r"""Return $\sum_n w_n B_g(z_n)$ [Q, P, B] of samples [Q, P, n]."""

        def term(z: Float[Array, "Q P"], weight: Float[Array, ""]) -> Float[Array, "Q P B"]:
            return weight * jax.vmap(self.features)(z)

        return sum_over_samples(term, z, weights)

    def expectation(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P"]:
        # Linear in the coefficients: sum the features first, then contract once.
        sums = self.feature_sums(*jax.lax.stop_gradient((z, weights)))
        return jnp.sum(sums * self.coefficients, axis=-1)

    def regrid(self, samples: Samples, ratio: float, bounds: Bounds, change: float | None) -> Self:
        return regrid(self, samples, ratio, bounds, change)


def sum_over_samples(
    term: Callable[[Float[Array, "Q P"], Float[Array, ""]], Any],
    z: Float[Array, "Q P n"],
    weights: Float[Array, " n"],
) -> Any:
    r"""Return $\sum_n \mathrm{term}(z_n, w_n)$ for terms linear in $w_n \ge 0$, a few samples at a time.

    All terms at once would not fit any cache, and those of zero weight (most proposals, when each
    example rests on one of them) are not visited at all. Samples are indexed on the last axis, as
    the tables leave them: transposing them makes XLA run the tables in that layout too.
    """
    order = jnp.argsort(-weights)
    active = jnp.sum(weights > 0)

    def add(block: Array, total: Any) -> Any:
        for i in range(_BLOCK):
            rank = block * _BLOCK + i
            n = order[jnp.minimum(rank, len(weights) - 1)]
            z_n = jax.lax.dynamic_index_in_dim(z, n, axis=-1, keepdims=False)
            total = jax.tree.map(
                jnp.add, total, term(z_n, jnp.where(rank < len(weights), weights[n], 0.0))
            )
        return total

    shapes = jax.eval_shape(term, z[..., 0], weights[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, (active + _BLOCK - 1) // _BLOCK, add, zeros)


def uniform_grid(size: int, points: int, interval: tuple[float, float]) -> Float[Array, "P G"]:
    """Return `points` equally spaced points on `interval`, for each of `size` inputs."""
    lo, hi = interval
    if not lo < hi:
        raise ValueError(f"a grid needs an interval with lower < upper, got {interval}.")
    return as_array(np.tile(np.linspace(lo, hi, points), (size, 1)))


def small_curve_coefficients(
    basis: LinearBasis, rng: np.random.Generator, start: Start
) -> Float[Array, "Q P B"]:
    r"""Return curves through uniform noise of width $\varepsilon / G$ on the grid, with Glorot weights.

    Table hp-nist's $\varepsilon$ and $\sigma_s$: functions start small but not identical.
    """
    outputs, inputs, _ = basis.coefficients.shape
    points = basis.grid.shape[1]
    noise = rng.uniform(-0.5, 0.5, (outputs, inputs, points)) * start.amplitude / points
    grid = np.asarray(basis.grid)[:1]  # all inputs start alike
    first = eqx.tree_at(lambda b: b.grid, basis, as_array(grid))
    inverse = least_squares(features_on(first, grid))[0].astype(np.float32)
    return as_array(noise @ inverse.T * start.scale * glorot(rng, outputs, inputs)[..., None])
