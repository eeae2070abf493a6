r"""KAEM = prior + generator + observation noise.

$z \sim p_f(z)$, $\tilde x = G(z, \sigma_\varepsilon\varepsilon)$, $p(x \mid z) = \mathcal{N}(x; \tilde x, \sigma^2 I)$.
"""

from math import log, pi, prod
from os import PathLike

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .generators import AbstractGenerator
from .priors import AbstractPrior


class KAEM(eqx.Module):
    """A Kolmogorov-Arnold energy model."""

    prior: AbstractPrior
    generator: AbstractGenerator
    noise: float = eqx.field(static=True, default=0.1)  # sigma, the likelihood's scale
    generator_noise: float = eqx.field(static=True, default=0.0)  # sigma_epsilon

    def __check_init__(self) -> None:
        if self.noise <= 0 or self.generator_noise < 0:
            raise ValueError(
                f"noise must be positive and generator_noise non-negative, "
                f"got {self.noise} and {self.generator_noise}."
            )

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.generator.data_shape

    @eqx.filter_jit
    def decode(
        self, z: Float[Array, "n ..."], key: PRNGKeyArray | None = None
    ) -> Float[Array, "n ..."]:
        """Latents to data; with a key, the generator's own noise is added."""
        decode = self.generator.decoder()
        if key is None or self.generator_noise == 0:
            return decode(z)
        noise = jax.random.normal(key, (z.shape[0], prod(self.data_shape)))
        return decode(z, self.generator_noise * noise)

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """`n` new data points, in one pass."""
        return self.decode(self.prior.sample(key, n))

    @eqx.filter_jit
    def generate(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Steer: quantiles `u` in [0, 1], one for each latent, to data points."""
        z = self.prior.inverse_cdf(u)
        x = self.decode(z.reshape(-1, *self.prior.shape))
        return x.reshape(*z.shape[: -len(self.prior.shape)], *self.data_shape)

    def log_likelihood_matrix(
        self, x: Float[Array, "B ..."], means: Float[Array, "N ..."]
    ) -> Float[Array, "B N"]:
        r"""$\log\mathcal{N}(x_b; \tilde x_s, \sigma^2 I)$ for all pairs, as one matrix product."""
        if x.shape[1:] != self.data_shape:
            raise ValueError(
                f"the model generates data of shape {self.data_shape}, got examples of "
                f"shape {x.shape[1:]}."
            )
        # Distances from a common centre: expanding the square around it loses fewer digits.
        dimension = prod(self.data_shape)
        a, b = x.reshape(len(x), -1), means.reshape(len(means), -1)
        centre = jax.lax.stop_gradient(jnp.mean(a, axis=0))
        a, b = a - centre, b - centre
        squares = jnp.sum(a**2, axis=1)[:, None] + jnp.sum(b**2, axis=1) - 2 * a @ b.T
        constant = dimension / 2 * log(2 * pi * self.noise**2)
        return -squares / (2 * self.noise**2) - constant

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one `.safetensors` file, atomically."""
        from .serialisation import save

        save(self, path)


def ready(model: KAEM, tolerance: float = 2e-7) -> KAEM:
    """A trained model for sampling: tables as fine as `tolerance` asks, built once."""
    prior = model.prior.uncache()
    if prior.inverse_transform == "exact":
        prior = prior.refined(tolerance)
    return eqx.tree_at(lambda m: m.prior, model, prior.cache())
