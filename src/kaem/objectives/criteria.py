"""What is maximised, given posterior samples: values whose gradients train prior and generator."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

if TYPE_CHECKING:
    from ..model import KAEM


def maximum_likelihood(
    model: "KAEM", log_likelihood: Float[Array, " B"], z: Float[Array, "B ..."]
) -> tuple[Array, Array, Array]:
    r"""$\mathbb{E}[\log p(x\mid z)] + \mathbb{E}[\log p(z)]$ (eq. learning-grad), and its two terms."""
    likelihood, prior = jnp.mean(log_likelihood), model.prior.mean_log_prob(z)
    return likelihood + prior, likelihood, prior


def trapezoid_weights(t: Float[Array, " N+1"]) -> Float[Array, " N+1"]:
    r"""$w_k$ with $\sum_k w_k E_k = \frac12\sum_k \Delta t_k (E_{k-1} + E_k)$."""
    half = jnp.diff(t) / 2
    return jnp.pad(half, (1, 0)) + jnp.pad(half, (0, 1))


def thermodynamic(
    model: "KAEM",
    log_likelihood: Float[Array, "N+1 B"],
    z: Float[Array, "B ..."],
    t: Float[Array, " N+1"],
) -> tuple[Array, Array, Array]:
    r"""The trapezoid of the thermodynamic integral (eq. SS-KAEM), plus the log-prior at $t = 1$.

    The integral alone gives the prior no gradient; at $t = 1$ the log-prior gives it that of
    maximum likelihood. Returns the sum and its two terms; the first estimates $\log p(x)$.
    """
    integral = trapezoid_weights(t) @ jnp.mean(log_likelihood, axis=1)
    prior = model.prior.mean_log_prob(z)
    return integral + prior, integral, prior
