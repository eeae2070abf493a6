"""The standard normal prior of a VAE."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..parallel import of_batch
from ._latent import Draw, LatentPrior, LogDensity

_FAR = 1e3  # a latent this far off a standard normal is lost


def normal_potential(z: Float[Array, "n Q"]) -> tuple[Array, Array]:
    """Return the log-density of standard normals without its constant, by coordinates, and its score."""
    return -0.5 * z**2, -z


def far(z: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the share of latents that are not finite, or absurdly far off a standard normal."""
    return jnp.mean(~(jnp.abs(z) <= _FAR))


class NormalPrior(LatentPrior):
    """Independent standard normals."""

    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, coordinates: int | tuple[int, ...]) -> None:
        """Make a prior: `coordinates` is their number, or the shape of a latent."""
        self.shape = (coordinates,) if isinstance(coordinates, int) else tuple(coordinates)

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
        return of_batch(lambda shape: jax.random.normal(key, shape), (n, *self.shape))

    def log_prob(self, z: Float[Array, "... Q"]) -> Float[Array, "..."]:
        """Return the log-density [*n] of latents z [*n, Q]."""
        return jnp.sum(jax.scipy.stats.norm.logpdf(z), axis=-1)

    def cdf(self, z: Float[Array, "... Q"]) -> Float[Array, "... Q"]:
        """Return the quantiles [*n, Q] of latents z [*n, Q]."""
        return jax.scipy.special.ndtr(z)

    @eqx.filter_jit
    def densities(self, points: int = 401) -> tuple[Float[Array, "1 N"], Float[Array, "Q N"]]:
        """Return nodes where the density is, and every density on them: what to plot."""
        nodes = jnp.linspace(-8, 8, points)[None]
        return nodes, jnp.broadcast_to(jax.scipy.stats.norm.pdf(nodes), (*self.shape, points))

    def for_chains(self) -> tuple[LogDensity, Draw]:
        return normal_potential, self.sample

    def mean_log_prob(self, z: Float[Array, "n Q"], key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.mean(self.log_prob(z))

    def lost(self, z: Float[Array, "..."]) -> Float[Array, ""]:
        return far(z)
