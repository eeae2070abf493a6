"""The plain formulation of the Langevin hot loop, to measure against: what one writes first.

Autodiff through `lax.conv_transpose`, and every wavelet evaluated at every step. Tests use it as
the twin of the fast path: same chain, same key, same latents.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray


def langevin(
    model: Any, x: Array, z: Array, key: PRNGKeyArray, steps: int, step_size: float
) -> Array:
    """Return latents by ULA with the same noise as `kaem.Langevin`, without what makes that fast.

    `model` is a KAEM with a mixture prior and a CNN.
    """
    prior, decode = model.prior, model.generator.plain_decoder()
    offset = prior.log_alpha - prior.log_normaliser()

    def log_joint(z: Array) -> Array:
        def log_prior(z: Array) -> Array:
            spread = jnp.broadcast_to(z[:, None], offset.shape)
            mixture = jax.nn.logsumexp(prior.energies(spread) + offset, axis=-1)
            return jnp.sum(mixture + prior.pi_0.log_density(z))

        likelihood = jnp.sum(model.log_likelihood(x, decode(z)))
        return likelihood + jnp.sum(jax.vmap(log_prior)(z))

    def step(i: Array, z: Array) -> Any:
        _, move_key = jax.random.split(jax.random.fold_in(key, i))
        noise = jax.random.normal(move_key, z.shape)
        return z + step_size * jax.grad(log_joint)(z) + (2 * step_size) ** 0.5 * noise

    return jax.lax.fori_loop(0, steps, step, z)
