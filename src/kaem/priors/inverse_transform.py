r"""Exact one-dimensional sampling: tables of $F$ and $F^{-1}$ for unnormalised densities.

Algorithm 1 of the paper cumulates Gauss-Legendre weights and calls the partial sums the CDF at
the nodes; they are not (a weight belongs to both sides of its node), and the error does not
vanish until the nodes resolve everything: see `kaem bench exactness`. Here a density known on
$K$ uniform cells and their midpoints gives

1. cell masses by Simpson's rule, hence $F$ at the knots and $\log Z$, both $O(h^4)$;
2. between knots the monotone rational-quadratic spline (Gregory and Delbourgo, 1982) through
   those values with slopes equal to the density itself: increasing, $O(h^4)$, and inverted by a
   quadratic equation.

With $\xi\in[0,1]$ the position in a cell of mass $\Delta$, $d_0, d_1$ the end densities times
$h/\Delta$,
$$F = F_k + \Delta\,\frac{\xi^2 + d_0\,\xi(1-\xi)}{1 + (d_0 + d_1 - 2)\,\xi(1-\xi)}.$$
"""

from abc import abstractmethod
from math import prod
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

# Densities are floored at this fraction of their maximum, so that F increases strictly; over a
# whole domain this adds less mass than float32 can resolve.
_FLOOR = -30.0
_SLOPES = (1e-4, 1e4)
Family = Float[Array, "*family"]
_CHAIN = 64  # above this many cells a search by blocks: long chains are slow to compile


class AbstractTable(eqx.Module):
    """F and its inverse for a family of densities: leading axes index the family, the last n points."""

    lo: eqx.AbstractVar[Family]
    log_normaliser: eqx.AbstractVar[Family]

    @abstractmethod
    def cdf(self, z: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        """Return F(z) [*family, n] at n points for each density."""

    @abstractmethod
    def inverse_cdf(self, u: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        """Return the z [*family, n] with F(z) = u; the ends of the domain at u = 0 and u = 1."""

    def plus(self, warning: Float[Array, ""]) -> Self:
        """Return the same table, all of whose results have the 0 or NaN of `derived.follow` added."""
        small = lambda table: (table.lo, table.log_normaliser)  # noqa: E731
        return eqx.tree_at(small, self, (self.lo + warning, self.log_normaliser + warning))


def open_uniform(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Draw uniform numbers in (0, 1).

    `jax.random.uniform` makes multiples of 2^-23, and zero, which every density maps to the end of
    its domain, once in eight million times; here that is the middle of the first 2^-23.
    """
    return jnp.maximum(jax.random.uniform(key, shape), 2.0**-24)


def _windows(values: Array, start: Array, size: int) -> Array:
    """`values[start : start + size]` of each point: short contiguous reads from one flat array."""
    family = values.shape[:-1]
    offset = jnp.arange(prod(family), dtype=jnp.int32).reshape(*family, 1) * values.shape[-1]
    dims = jax.lax.GatherDimensionNumbers((start.ndim,), (), (0,))
    promise = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    places = (offset + start)[..., None]
    return jax.lax.gather(values.reshape(-1), places, dims, (size,), mode=promise)


def _ends(values: Array, k: Array) -> tuple[Array, Array]:
    """What a table holds at both ends of cells."""
    pair = _windows(values, k, 2)
    return pair[..., 0], pair[..., 1]


def _cell_of(knots: Array, u: Array) -> Array:
    """The cell k with knots[k] <= u < knots[k + 1]: a block of cells, then one cell of it.

    Counting is fast where gathering is slow: two counts of about sqrt(K) knots and one gather take
    the place of log2(K) gathers.
    """
    cells = knots.shape[-1] - 1
    size = 1 << (cells.bit_length() // 2)  # of a block

    def last_below(values: Array) -> Array:
        return jnp.sum(values <= u[..., None], axis=-1, dtype=jnp.int32) - 1

    block = last_below(knots[..., None, :cells:size])
    start = jnp.clip(block * size, 0, max(cells - size, 0))
    return jnp.clip(start + last_below(_windows(knots, start, min(size, cells))), 0, cells - 1)


@jax.custom_jvp
def _chained(knots: Array, density: Array, u: Array) -> tuple[Array, ...]:
    """The cell of each u, as a float, and knots and densities at both of its ends."""
    columns = [knots[..., :-1], knots[..., 1:], density[..., :-1], density[..., 1:]]
    found = [jnp.broadcast_to(column[..., :1], u.shape) for column in columns]
    k = jnp.zeros(u.shape, jnp.int32)
    for i in range(1, knots.shape[-1] - 1):
        beyond = u >= knots[..., i : i + 1]
        k = jnp.where(beyond, i, k)
        found = [
            jnp.where(beyond, column[..., i : i + 1], value)
            for column, value in zip(columns, found, strict=True)
        ]
    return k.astype(u.dtype), *found


@_chained.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    # Selected values change with the table, not with u; a gather says so in one operation, where
    # differentiating every select compiles for half a minute.
    made = _chained(*primals)
    k = made[0].astype(jnp.int32)
    ends = (*_ends(tangents[0], k), *_ends(tangents[1], k))
    return made, (jnp.zeros_like(made[0]), *ends)


class _Cell(NamedTuple):
    """Where a point is: cell, F at its left knot, its mass, end slopes over the mean density."""

    k: Array
    start: Array
    mass: Array
    d0: Array
    d1: Array


class Table(AbstractTable):
    """The exact transform: Simpson masses and a rational-quadratic CDF."""

    lo: Float[Array, "*family"]
    hi: Float[Array, "*family"]
    knots: Float[Array, "*family K+1"]
    density: Float[Array, "*family K+1"]
    log_normaliser: Float[Array, "*family"]

    @classmethod
    def build(cls, lo: Family, hi: Family, log_density: Float[Array, "*family 2K+1"]) -> Self:
        """Build from log-densities [*family, 2K + 1] on the knots and midpoints of K uniform cells of [lo, hi]."""
        top = jax.lax.stop_gradient(jnp.max(log_density, axis=-1, keepdims=True))
        weight = jnp.exp(jnp.maximum(log_density - top, _FLOOR))
        ends, middles = weight[..., ::2], weight[..., 1::2]
        mass = (ends[..., :-1] + 4 * middles + ends[..., 1:]) / 6  # Simpson, in units of h
        total = jnp.sum(mass, axis=-1, keepdims=True)
        knots = jnp.concatenate([jnp.zeros_like(total), jnp.cumsum(mass, axis=-1)], axis=-1)
        h = (hi - lo) / middles.shape[-1]
        log_z = top[..., 0] + jnp.log(total[..., 0] * h)
        return cls(lo, hi, knots / knots[..., -1:], ends / (total * h[..., None]), log_z)

    @property
    def cells(self) -> int:
        return self.knots.shape[-1] - 1

    def _cell(self, k: Array) -> _Cell:
        return self._scaled(k, *_ends(self.knots, k), *_ends(self.density, k))

    def _cell_holding(self, u: Array) -> _Cell:
        """The cell of each u. Up to 64 cells a chain of selects: one fused loop, no gathers."""
        if self.cells > _CHAIN:
            return self._cell(_cell_of(self.knots, u))
        return self._scaled(*_chained(self.knots, self.density, u))

    def _scaled(self, k: Array, start: Array, end: Array, p0: Array, p1: Array) -> _Cell:
        mass = jnp.maximum(end - start, np.finfo(np.float32).tiny)
        per_slope = ((self.hi - self.lo) / self.cells)[..., None] / mass
        return _Cell(k, start, mass, *(jnp.clip(p * per_slope, *_SLOPES) for p in (p0, p1)))

    def cdf(self, z: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        lo, hi = self.lo[..., None], self.hi[..., None]
        position = jnp.clip((z - lo) / (hi - lo), 0, 1) * self.cells
        k, start, mass, d0, d1 = self._cell(jnp.clip(position.astype(jnp.int32), 0, self.cells - 1))
        xi = position - k
        bend = xi * (1 - xi)
        return start + mass * (xi**2 + d0 * bend) / (1 + (d0 + d1 - 2) * bend)

    def inverse_cdf(self, u: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        lo, hi = self.lo[..., None], self.hi[..., None]
        k, start, mass, d0, d1 = self._cell_holding(u)
        y = jnp.clip((u - start) / mass, 0, 1)
        tilt = y * (d0 + d1 - 2)
        a, b = 1 - d0 + tilt, d0 - tilt
        # The smaller root of a xi^2 + b xi - y = 0, in the form that does not cancel.
        xi = 2 * y / (b + jnp.sqrt(jnp.maximum(b**2 + 4 * a * y, 1e-12)))
        return lo + (hi - lo) * ((k + jnp.clip(xi, 0, 1)) / self.cells)

    def error(self, log_density: Float[Array, "*family 2K+1"]) -> Float[Array, "*family"]:
        r"""Return the estimated $\sup_u |F(F^{-1}(u)) - u|$: this table against the one with half its cells.

        Halving $h$ divides the error by 16 once the density is resolved, so an eighth of the
        difference is on the safe side; a large difference means that it is not resolved yet.
        """
        coarse = Table.build(self.lo, self.hi, log_density[..., ::2])
        nodes = jnp.linspace(self.lo, self.hi, self.cells + 1, axis=-1)
        difference = jnp.max(jnp.abs(coarse.cdf(nodes) - self.knots), axis=-1)
        return jnp.where(difference > 1e-2, difference, difference / 8)


class PaperTable(AbstractTable):
    """Algorithm 1 as written: cumulated Gauss-Legendre weights, linear interpolation."""

    lo: Float[Array, "*family"]
    hi: Float[Array, "*family"]
    nodes: Float[Array, "*family K+1"]
    knots: Float[Array, "*family K+1"]
    log_normaliser: Float[Array, "*family"]

    @classmethod
    def build(cls, lo: Family, hi: Family, log_density: Float[Array, "*family K"]) -> Self:
        """Build from log-densities on the Gauss-Legendre nodes of [lo, hi]."""
        x, w = gauss_legendre(log_density.shape[-1])
        half = (hi - lo)[..., None] / 2
        top = jax.lax.stop_gradient(jnp.max(log_density, axis=-1, keepdims=True))
        mass = w * half * jnp.exp(log_density - top)
        total = jnp.sum(mass, axis=-1, keepdims=True)
        knots = jnp.concatenate([jnp.zeros_like(total), jnp.cumsum(mass, axis=-1)], axis=-1)
        nodes = jnp.concatenate([lo[..., None], lo[..., None] + half * (1 + x)], axis=-1)
        return cls(lo, hi, nodes, knots / knots[..., -1:], top[..., 0] + jnp.log(total[..., 0]))

    def inverse_cdf(self, u: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        k = _cell_of(self.knots, u)
        start, end = _ends(self.knots, k)
        t = jnp.clip((u - start) / jnp.maximum(end - start, 1e-30), 0, 1)
        low, high = _ends(self.nodes, k)
        return (1 - t) * low + t * high

    def cdf(self, z: Float[Array, "*family n"]) -> Float[Array, "*family n"]:
        k = _cell_of(self.nodes, z)
        start, end = _ends(self.nodes, k)
        t = jnp.clip((z - start) / (end - start), 0, 1)
        low, high = _ends(self.knots, k)
        return (1 - t) * low + t * high


def gauss_legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights on [-1, 1], in float32."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return x.astype(np.float32), w.astype(np.float32)
