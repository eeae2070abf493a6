r"""What encoders say of latents: normals, and normals that were mixed and bent into a prior's domain.

An encoder gives every example independent normals $y_i \sim \mathcal{N}(\mu_i(x), \sigma_i^2(x))$. Those of a
VAE are its latents. Those of a KAEM become latents by a mixing $M$ that all examples share and a bend
that keeps them in the domain $c \pm r$ of the prior,
$$z = c + r\,\frac{t}{(1 + t^8)^{1/8}},\qquad t = \frac{My - c}{r},$$
which in the inner half of the domain is $My$ to one part in two thousand. The map can be inverted, so that the density of what is
drawn is known exactly, and a bound on $\log p(x)$ remains one for every prior on every domain.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..parallel import of_batch

_LOG_2PI_E = 2.8378770664093453
_POWER = 8  # of the bend: even, and the larger, the longer it stays straight
_FAR = 1e3  # in reaches: farther out nothing moves any more, and powers would overflow

Bounds = tuple[Float[Array, "..."], Float[Array, "..."]] | None  # of a domain; None: all of space


def bend(straight: Float[Array, "n D"], bounds: Bounds) -> tuple[Float[Array, "n D"], Array]:
    """Return latents in the domain, and the logarithms of the slopes there, summed."""
    if bounds is None:
        return straight, jnp.zeros(len(straight))
    centre, reach = _box(bounds)
    t = jnp.clip((straight - centre) / reach, -_FAR, _FAR)
    logarithm = jnp.log1p(t**_POWER)
    log_slope = -(1 + 1 / _POWER) * jnp.sum(logarithm, axis=1)
    z = centre + reach * t * jnp.exp(-logarithm / _POWER)
    lo, hi = (bound.reshape(-1) for bound in bounds)
    return jnp.clip(z, lo, hi), log_slope  # rounding may leave the domain


def straighten(z: Float[Array, "n D"], bounds: Bounds) -> Float[Array, "n D"]:
    """Return what is bent to latents; those outside the domain are taken to be at its ends."""
    if bounds is None:
        return z
    centre, reach = _box(bounds)
    place = jnp.clip((z - centre) / reach, -1 + 1e-6, 1 - 1e-6)
    return centre + reach * place * (1 - place**_POWER) ** (-1 / _POWER)


def _box(bounds: tuple[Array, Array]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    lo, hi = (bound.reshape(-1) for bound in bounds)
    return (lo + hi) / 2, (hi - lo) / 2


class Normal(NamedTuple):
    """Independent normals, one for each latent of each example."""

    mean: Float[Array, "n Q"]
    log_variance: Float[Array, "n Q"]

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n Q"]:
        """Return a draw for each example, differentiable in the parameters."""
        return self.at(of_batch(lambda shape: jax.random.normal(key, shape), self.mean.shape))

    def at(self, noise: Float[Array, "n Q"]) -> Float[Array, "n Q"]:
        """Return the draws that standard normal `noise` makes."""
        return self.mean + jnp.exp(0.5 * self.log_variance) * noise

    def log_prob(self, z: Float[Array, "n Q"]) -> Float[Array, " n"]:
        """Return the log-density of one latent of each example."""
        scale = jnp.exp(0.5 * self.log_variance)
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, self.mean, scale), axis=1)

    def kl_from_standard(self) -> Float[Array, " n"]:
        r"""Return $\mathrm{KL}(\mathcal{N}(\mu, \sigma^2)\,\|\,\mathcal{N}(0, I))$, example by example."""
        mean, log_variance = self
        return 0.5 * jnp.sum(mean**2 + jnp.expm1(log_variance) - log_variance, axis=1)

    def draw_with_entropy(
        self, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n Q"], Float[Array, " n"]]:
        """Return a draw for each example, and the entropy of its density."""
        return self.draw(key), self.entropy()

    def entropy(self) -> Float[Array, " n"]:
        """Return the entropy, example by example."""
        return 0.5 * jnp.sum(self.log_variance + _LOG_2PI_E, axis=1)


class Bent(NamedTuple):
    """Normals that were mixed, then bent into a domain; latents have the shape of its ends."""

    normal: Normal
    mixing: Float[Array, "D D"] | None  # None mixes nothing
    bounds: tuple[Float[Array, "..."], Float[Array, "..."]]

    @property
    def mean(self) -> Float[Array, "n ..."]:
        """Return the latents in the middle of each guess: what the means of the normals become."""
        return self._bent(self._mixed(self.normal.mean))[0]

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n ..."]:
        """Return a draw for each example, differentiable in the parameters."""
        return self.draw_with_entropy(key)[0]

    def draw_with_entropy(
        self, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n ..."], Float[Array, " n"]]:
        r"""Return a draw for each example, and the entropy of its density.

        The entropy is exact but for the mean slope of the bend, which is taken at the draw.
        """
        z, log_slope = self._bent(self._mixed(self.normal.draw(key)))
        return z, self.normal.entropy() + log_slope + self._log_volume()

    def log_prob(self, z: Float[Array, "n ..."]) -> Float[Array, " n"]:
        """Return the log-density of one latent of each example; minus infinity outside the domain."""
        flat = z.reshape(len(z), -1)
        lo, hi = (bound.reshape(-1) for bound in self.bounds)
        inside = jnp.all((flat > lo) & (flat < hi), axis=1)
        straight = straighten(flat, self.bounds)
        _, log_slope = bend(straight, self.bounds)
        y = straight if self.mixing is None else jnp.linalg.solve(self.mixing, straight.T).T
        value = self.normal.log_prob(y) - log_slope - self._log_volume()
        return jnp.where(inside, value, -jnp.inf)

    def _mixed(self, y: Float[Array, "n D"]) -> Float[Array, "n D"]:
        return y if self.mixing is None else y @ self.mixing.T

    def _log_volume(self) -> Any:
        return 0.0 if self.mixing is None else jnp.linalg.slogdet(self.mixing)[1]

    def _bent(self, straight: Float[Array, "n D"]) -> tuple[Float[Array, "n ..."], Array]:
        """Return latents in the domain, and the logarithm of the slopes there, summed."""
        z, log_slope = bend(straight, self.bounds)
        return z.reshape(len(z), *self.bounds[0].shape), log_slope
