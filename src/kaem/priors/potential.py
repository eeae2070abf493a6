r"""$\log p$ and its score by table, for Langevin loops.

What is tabulated is $\log(p/\pi_0)$, smooth and small, as a cubic in each cell with the values and
slopes (fourth-order differences) at the knots; the reference is added in closed form. The score
is the exact derivative of the tabulated $\log p$, so that Metropolis corrections and gradients
speak of one density. Beyond the domain $\log p$ is minus infinity.
"""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .inverse_transform import Family
from .reference import REFERENCES


class Potential(eqx.Module):
    """Cubics of $\\log(p/\\pi_0)$: leading axes are the family, then cells, then coefficients."""

    lo: Float[Array, "*family"]
    hi: Float[Array, "*family"]
    cubics: Float[Array, "*family K 4"]
    reference: str = eqx.field(static=True)

    @classmethod
    def build(
        cls, lo: Family, hi: Family, ratio: Float[Array, "*family K+1"], reference: str
    ) -> Self:
        """Build from $\\log(p/\\pi_0)$ on the ends of K uniform cells of [lo, hi]."""
        inner = (8 * (ratio[..., 3:-1] - ratio[..., 1:-3]) - ratio[..., 4:] + ratio[..., :-4]) / 12
        ends = [
            (-3 * ratio[..., :1] + 4 * ratio[..., 1:2] - ratio[..., 2:3]) / 2,
            (ratio[..., 2:3] - ratio[..., :1]) / 2,
            inner,
            (ratio[..., -1:] - ratio[..., -3:-2]) / 2,
            (3 * ratio[..., -1:] - 4 * ratio[..., -2:-1] + ratio[..., -3:-2]) / 2,
        ]
        slope = jnp.concatenate(ends, axis=-1)
        y0, y1, d0, d1 = ratio[..., :-1], ratio[..., 1:], slope[..., :-1], slope[..., 1:]
        cubics = [y0, d0, 3 * (y1 - y0) - 2 * d0 - d1, 2 * (y0 - y1) + d0 + d1]
        return cls(lo, hi, jnp.stack(cubics, axis=-1), reference)

    def error(self, ratio: Float[Array, "*family K+1"]) -> Float[Array, "*family"]:
        r"""Return the estimated error of the slope of $\log(p/\pi_0)$, as a share of that slope.

        Both are root mean squares under $p$. This against the same with half the cells, in the middle
        of each cell, where the slope of a cubic is worst. Halving $h$ divides the error by eight once
        the slope is resolved, so a third of the difference is on the safe side; a large difference
        means that it is not resolved yet.
        """
        coarse = Potential.build(self.lo, self.hi, ratio[..., ::2], self.reference)
        cells = self.cubics.shape[-2]
        middles = (jnp.arange(cells) + 0.5).reshape(-1, *(1 for _ in self.lo.shape)) / cells
        z = self.lo + (self.hi - self.lo) * middles
        slope = self._tilt(z)[1]
        weight = jax.nn.softmax(self(z)[0], axis=0)

        def size(slope: Float[Array, "K ..."]) -> Float[Array, "*family"]:
            return jnp.sqrt(jnp.sum(weight * slope**2, axis=0))

        difference = size(coarse._tilt(z)[1] - slope) / jnp.maximum(size(slope), 1e-6)
        return jnp.where(difference > 0.3, difference, difference / 3)

    def __call__(
        self, z: Float[Array, "*n family"]
    ) -> tuple[Float[Array, "*n family"], Float[Array, "*n family"]]:
        r"""Return $\log p(z)$ and $\partial_z\log p(z)$, each [*n, *family], coordinate by coordinate."""
        ratio, slope = self._tilt(z)
        inside = (z >= self.lo) & (z <= self.hi)
        log_pi = REFERENCES[self.reference].log_density
        base, base_slope = jax.jvp(log_pi, (z,), (jnp.ones_like(z),))
        return jnp.where(inside, ratio + base, -jnp.inf), jnp.where(inside, slope, 0) + base_slope

    def _tilt(self, z: Float[Array, "*n family"]) -> tuple[Array, Array]:
        r"""$\log(p/\pi_0)$ and its slope, by the cubics alone."""
        cells = self.cubics.shape[-2]
        per_unit = cells / (self.hi - self.lo)
        position = jnp.clip((z - self.lo) * per_unit, 0, cells)
        k = jnp.minimum(position.astype(jnp.int32), cells - 1)
        rows = jnp.arange(self.lo.size, dtype=jnp.int32).reshape(self.lo.shape) * cells + k
        c = self.cubics.reshape(-1, 4)[rows]
        xi = position - k
        ratio = c[..., 0] + xi * (c[..., 1] + xi * (c[..., 2] + xi * c[..., 3]))
        return ratio, (c[..., 1] + xi * (2 * c[..., 2] + 3 * xi * c[..., 3])) * per_unit
