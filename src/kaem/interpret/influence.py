r"""Which latents move the output, locally and over their whole range.

With $x = G(z)$ and independent latents, two estimates for every latent $z_j$:
$$J_j = \mathrm{Var}(z_j)\,\mathbb{E}\,\|\partial x/\partial z_j\|^2,\qquad
S_j = \mathbb{E}\big[\textstyle\sum_i\mathrm{Var}(x_i\mid z_{-j})\big].$$
$J_j$ extrapolates the slope at a point; $S_j$ sweeps $z_j$ through its quantiles, others fixed, and
is the total effect of Sobol (1993). Both are given as shares of $\sum_i\mathrm{Var}(x_i)$. The $S_j$
sum to one if no latents interact and to more if they do; for a linear generator $J_j = S_j$.
"""

import math
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.sheets import is_image
from ..errors import UserError
from ..generators import GENERATORS, AbstractGenerator
from ..initialise import host_rng
from ..model import KAEM, AbstractModel
from ..priors.inverse_transform import gauss_legendre
from .curves import Place, place_name
from .figures import BLUE, GREY, ORANGE, new_figure, save_figure

MOST_SWEPT = 256
_DRAWS = 1024  # for the variance of the output
_SLOPES = 4  # slopes for each base: they are cheaper than sweeps, and vary more
_OUTPUTS = 2**19  # pixels made at once: layers of a convolutional generator are much larger


class Influence(NamedTuple):
    """Shares of the output's variance, in the shape of one latent, and the latents in order."""

    jacobian: np.ndarray
    sweep: np.ndarray  # NaN where a latent was not swept
    order: (
        np.ndarray
    )  # indices into the flattened latent, by sweep; then those not swept, by Jacobian
    variance: float  # of the output, summed over its dimensions

    @property
    def places(self) -> list[Place]:
        """The latents in order, as indices (q, p) or (q,)."""
        index = np.stack(np.unravel_index(self.order, self.sweep.shape), axis=1)
        return [tuple(place) for place in index.tolist()]

    def leading(self, count: int) -> list[Place]:
        """The first `count` places of different q: generators see sums over p, so one p stands for all."""
        first = {place[0]: place for place in reversed(self.places)}
        return [place for place in self.places if first[place[0]] == place][:count]


def readable(model: AbstractModel, figure: str, images: bool = False) -> KAEM:
    """The model with exact tables of its densities, or why `figure` cannot be made of it.

    Samplers that pick a component first do not increase with u; quantiles here are always those
    of the densities that are drawn.
    """
    if not isinstance(model, KAEM):
        raise UserError(
            f"{figure} needs a KAEM, whose prior is a product of one-dimensional densities; got a "
            f"{type(model).__name__}. Choose a run that trained a KAEM."
        )
    if images and not is_image(model.data_shape):
        raise UserError(
            f"{figure} shows images [H, W, 1 or 3], but this model generates data of shape "
            f"{model.data_shape}; `influence` works for any data."
        )
    if model.prior.cached is not None and model.prior.inverse_transform == "exact":
        return model
    prior = model.prior.with_inverse_transform("exact").refined().cache()
    return eqx.tree_at(lambda m: m.prior, model, prior)


def influence(
    model: AbstractModel, key: PRNGKeyArray, bases: int = 32, quantiles: int = 9
) -> Influence:
    """Both estimates for every latent; of more than 256, the 256 of largest Jacobian are swept.

    Expectations of sweeps are over `bases` draws of the prior, those of slopes over four times as
    many, and the output's variance is that of 1,024, all of them Latin hypercubes. The variance
    within a sweep is Gauss-Legendre quadrature in u with `quantiles` nodes. In trained models the
    squared slopes have heavy tails: sweeps repeat to some 10 %, Jacobians to some 40 %.
    """
    if bases < 1 or quantiles < 2:
        raise ValueError(
            f"influence needs at least 1 base and 2 quantiles, got {bases} and {quantiles}."
        )
    kaem = readable(model, "influence")
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
    variance = _output_variance(kaem, draws)
    by_sweep = np.argsort(-sweep, kind="stable")  # NaN last
    order = np.concatenate([by_sweep[:MOST_SWEPT], order[MOST_SWEPT:]])
    scale = 1 / variance if variance > 0 else 0.0
    return Influence(scale * jacobian, scale * sweep.reshape(shape), order, variance)


def _hypercube(key: PRNGKeyArray, n: int, shape: tuple[int, ...]) -> Float[Array, "n ..."]:
    """A Latin hypercube: every coordinate has one point in each n-th of [0, 1]."""
    rng = host_rng(key)  # XLA would compile these sorts for seconds
    cells = rng.permuted(np.broadcast_to(np.arange(n)[:, None], (n, math.prod(shape))), axis=0)
    u = np.clip((cells + rng.uniform(size=cells.shape)) / n, 2.0**-24, 1 - 2.0**-24)
    return jnp.asarray(u.reshape(n, *shape), jnp.float32)


def _batches(n: int, size: int) -> int:
    """The fewest equal batches of n things whose `size` pixels each stay within bounds."""
    return next(count for count in range(1, n + 1) if n % count == 0 and (count == n or n // count * size <= _OUTPUTS))  # fmt: skip


def _squared_slopes(
    generator: AbstractGenerator, batches: list[Float[Array, "b ..."]], shape: tuple[int, ...]
) -> np.ndarray:
    r"""$\mathbb{E}\,\|\partial x/\partial z_j\|^2$ of every latent, by forward mode."""
    # These generators see only sums over p, so that one slope serves a whole row of latents.
    summed = len(shape) == 2 and isinstance(generator, tuple(GENERATORS.values()))
    columns = shape[1] if summed else 1
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
    """The variance of all outputs over the values `swept` of latent j, averaged over the bases."""
    n, b = len(swept), len(z)
    flat = jnp.broadcast_to(z.reshape(b, 1, -1), (b, n, math.prod(z.shape[1:])))
    flat = flat.at[:, :, j].set(swept.reshape(n, -1)[:, j])
    x = generator.decoder()(flat.reshape(b * n, *z.shape[1:])).reshape(b, n, -1)
    x = x - jnp.einsum("n,bnx->bx", weights, x)[:, None]
    return jnp.einsum("n,bnx->", weights, x**2) / b


def _output_variance(model: KAEM, z: Float[Array, "n ..."]) -> float:
    batches = jnp.split(z, _batches(len(z), math.prod(model.data_shape)))
    made = np.concatenate([np.asarray(model.decode(some)) for some in batches])
    return float(made.var(axis=0, dtype=np.float64).sum())


def draw_influence(found: Influence, path: Path, count: int = 30) -> list[Place]:
    """Both measures of the `count` most influential latents, ranked; returns which."""
    places = found.places[:count]
    rows = np.arange(len(places))
    # Side by side: where the output bends within a latent's range, slopes are far above sweeps.
    figure, axes = new_figure(7.0, 1.0 + 0.19 * max(len(places), 4), columns=2, sharey=True)
    panels = (
        (found.sweep, BLUE, "over its whole range: quantile sweep", ""),
        (
            found.jacobian, ORANGE, r"locally: Jacobian, squared slope $\times$ variance",
            "\n(above the sweep where the output bends)",
        ),
    )  # fmt: skip
    for axis, (shares, colour, title, note) in zip(axes[0], panels, strict=True):
        values = np.array([shares[place] for place in places])
        axis.barh(rows, np.nan_to_num(values), height=0.66, color=colour)
        axis.set_xlim(0, None)
        axis.tick_params(labelsize=7)
        axis.locator_params(axis="x", nbins=6)
        axis.set_title(title, fontsize=8)
        axis.set_xlabel(f"relative to the variance of the output{note}", fontsize=8)
        axis.grid(axis="x", alpha=0.25, lw=0.5, color=GREY)
        axis.set_axisbelow(True)
    axes[0, 0].set_yticks(rows, [place_name(place) for place in places], fontsize=7)
    axes[0, 0].set_ylim(len(places) - 0.4, -0.6)
    axes[0, 0].set_ylabel("latent, ranked by sweep", fontsize=8)
    total, swept = found.sweep.size, int(np.isfinite(found.sweep).sum())
    which = f"all {total} latents" if len(places) == total else f"the first {len(places)} of {total} latents"  # fmt: skip
    rest = f" ({swept} were swept)" if swept < total else ""
    figure.suptitle(f"What moves the output: {which}{rest}", fontsize=9.5)
    save_figure(figure, path)
    return places
