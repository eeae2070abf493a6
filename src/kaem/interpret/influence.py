r"""Which latents move the output, locally and over their whole range.

With $x = G(z)$ and independent latents, two estimates for every latent $z_j$:
$$J_j = \mathrm{Var}(z_j)\,\mathbb{E}\,\|\partial x/\partial z_j\|^2,\qquad
S_j = \mathbb{E}\big[\textstyle\sum_i\mathrm{Var}(x_i\mid z_{-j})\big].$$
$J_j$ extrapolates the slope at a point; $S_j$ sweeps $z_j$ through its quantiles, others fixed, and
is the total effect of Sobol (1993). Both are given as shares of $\sum_i\mathrm{Var}(x_i)$. The $S_j$
sum to one if no latents interact and to more if they do; for a linear generator $J_j = S_j$.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.checks import checked_finite
from ..generators import AbstractGenerator
from ..initialise import host_rng
from ..models import AbstractModel
from ..priors.inverse_transform import gauss_legendre
from .curves import Place, places_at

MOST_SWEPT = 256
_DRAWS = 1024  # for the variance of the output
_SLOPES = 4  # slopes for each base: they are cheaper than sweeps, and vary more
_OUTPUTS = 2**19  # pixels made at once: layers of a convolutional generator are much larger


class Influence(NamedTuple):
    """Shares of the output's variance, in the shape of one latent, and the latents in order."""

    jacobian: np.ndarray
    sweep: np.ndarray  # NaN where a latent was not swept
    order: np.ndarray  # of the flattened latent: by sweep, then those not swept by Jacobian
    variance: float  # of the output, summed over its dimensions

    @property
    def places(self) -> list[Place]:
        """The latents in order, as indices (q, p) or (q,)."""
        return places_at(self.order, self.sweep.shape)

    def leading(self, count: int) -> list[Place]:
        """Return the first `count` places of different q: generators see sums over p, so one p stands for all."""
        first = {place[0]: place for place in reversed(self.places)}
        return [place for place in self.places if first[place[0]] == place][:count]


def influence(
    model: AbstractModel, key: PRNGKeyArray, bases: int = 32, quantiles: int = 9
) -> Influence:
    """Return both estimates for every latent; of more than 256, the 256 of largest Jacobian are swept.

    Expectations of sweeps are over `bases` draws of the prior, those of slopes over four times as
    many, and the output's variance is that of 1,024, all of them Latin hypercubes. The variance
    within a sweep is Gauss-Legendre quadrature in u with `quantiles` nodes. In trained models the
    squared slopes have heavy tails: sweeps repeat to some 10 %, Jacobians to some 40 %.
    """
    if bases < 1 or quantiles < 2:
        raise ValueError(
            f"influence needs at least 1 base and 2 quantiles, got {bases} and {quantiles}."
        )
    kaem = model.readable("influence")
    kaem = eqx.tree_at(lambda m: m.generator, kaem, kaem.generator.prepared())
    generator, shape, size = kaem.generator, kaem.prior.shape, math.prod(kaem.data_shape)
    base_key, slope_key, draw_key = jax.random.split(key, 3)

    z = kaem.prior.inverse_cdf(_hypercube(slope_key, _SLOPES * bases, shape))
    std = np.asarray(kaem.prior.summary().std, np.float64)
    batches = jnp.split(z, _batches(len(z), 2 * size))
    jacobian = std**2 * _squared_slopes(generator, batches, shape)

    order = np.argsort(-jacobian, axis=None, kind="stable")
    nodes, weights = gauss_legendre(quantiles)
    u = jnp.asarray((1 + nodes) / 2).reshape(-1, *(1 for _ in shape))
    swept = kaem.prior.inverse_cdf(jnp.broadcast_to(u, (quantiles, *shape)))
    z = kaem.prior.inverse_cdf(_hypercube(base_key, bases, shape))
    batches = jnp.split(z, _batches(bases, quantiles * size))
    sweep = np.full(math.prod(shape), np.nan)
    for j in order[:MOST_SWEPT]:
        effects = [_sweep_variance(generator, some, swept, jnp.asarray(weights / 2), jnp.int32(j)) for some in batches]  # fmt: skip
        sweep[j] = np.mean([float(effect) for effect in effects])

    draws = kaem.prior.inverse_cdf(_hypercube(draw_key, _DRAWS, shape))
    made = [checked_finite(kaem.decode(some)) for some in jnp.split(draws, _batches(_DRAWS, size))]
    variance = float(np.concatenate(made).var(axis=0, dtype=np.float64).sum())
    by_sweep = np.argsort(-sweep, kind="stable")  # NaN last
    order = np.concatenate([by_sweep[:MOST_SWEPT], order[MOST_SWEPT:]])
    scale = 1 / variance if variance > 0 else 0.0
    return Influence(scale * jacobian, scale * sweep.reshape(shape), order, variance)


def _hypercube(key: PRNGKeyArray, n: int, shape: tuple[int, ...]) -> Float[Array, "n ..."]:
    """Return a Latin hypercube: every coordinate has one point in each n-th of [0, 1]."""
    rng = host_rng(key)  # XLA would compile these sorts for seconds
    cells = rng.permuted(np.broadcast_to(np.arange(n)[:, None], (n, math.prod(shape))), axis=0)
    u = np.clip((cells + rng.uniform(size=cells.shape)) / n, 2.0**-24, 1 - 2.0**-24)
    return jnp.asarray(u.reshape(n, *shape), jnp.float32)


def _batches(n: int, size: int) -> int:
    """Return the fewest equal batches of n things whose `size` pixels each stay within bounds."""
    return next(count for count in range(1, n + 1) if n % count == 0 and (count == n or n // count * size <= _OUTPUTS))  # fmt: skip


def _squared_slopes(
    generator: AbstractGenerator, batches: list[Float[Array, "b ..."]], shape: tuple[int, ...]
) -> np.ndarray:
    r"""Return $\mathbb{E}\,\|\partial x/\partial z_j\|^2$ of every latent, by forward mode."""
    # Where only sums over p count, one slope serves a whole row of latents.
    columns = shape[1] if len(shape) == 2 and generator.sums_latents else 1
    slopes = [
        np.mean([float(_squared_slope(generator, some, jnp.int32(j))) for some in batches])
        for j in range(0, math.prod(shape), columns)
    ]
    return np.repeat(np.array(slopes), columns).reshape(shape)


@eqx.filter_jit
def _squared_slope(
    generator: AbstractGenerator, z: Float[Array, "b ..."], j: Int[Array, ""]
) -> Float[Array, ""]:
    flat = jnp.zeros((len(z), math.prod(z.shape[1:]))).at[:, j].set(1)
    _, slope = jax.jvp(generator.decoder(), (z,), (flat.reshape(z.shape),))
    return jnp.sum(slope**2) / len(z)


@eqx.filter_jit
def _sweep_variance(
    generator: AbstractGenerator,
    z: Float[Array, "b ..."],
    swept: Float[Array, "n ..."],
    weights: Float[Array, " n"],
    j: Int[Array, ""],
) -> Float[Array, ""]:
    """Return the variance of all outputs over the values `swept` of latent j, averaged over the bases."""
    n, b = len(swept), len(z)
    flat = jnp.broadcast_to(z.reshape(b, 1, -1), (b, n, math.prod(z.shape[1:])))
    flat = flat.at[:, :, j].set(swept.reshape(n, -1)[:, j])
    x = generator.decoder()(flat.reshape(b * n, *z.shape[1:])).reshape(b, n, -1)
    x = x - jnp.einsum("n,bnx->bx", weights, x)[:, None]
    return jnp.einsum("n,bnx->", weights, x**2) / b
