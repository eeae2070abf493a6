"""What is maximised, at given posterior samples: values whose gradients train prior and generator."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..derived import frozen

if TYPE_CHECKING:
    from ..models import LatentModel


def maximum_likelihood(
    model: "LatentModel", x: Float[Array, "B ..."], z: Float[Array, "B ..."], key: PRNGKeyArray
) -> tuple[Array, Array, Array]:
    r"""Return $\mathbb{E}[\log p(x\mid z)] + \mathbb{E}[\log p(z)]$ (eq. learning-grad), and its two terms."""
    noise_key, prior_key = jax.random.split(key)
    likelihood = jnp.mean(model.log_likelihood(x, model.decode(z, noise_key)))
    prior = model.prior.mean_log_prob(z, prior_key)
    return likelihood + prior, likelihood, prior


def trapezoid_weights(t: Float[Array, " N+1"]) -> Float[Array, " N+1"]:
    r"""Return $w_k$ [N + 1] with $\sum_k w_k E_k = \frac12\sum_k \Delta t_k (E_{k-1} + E_k)$."""
    half = jnp.diff(t) / 2
    return jnp.pad(half, (1, 0)) + jnp.pad(half, (0, 1))


def tempered(
    model: "LatentModel",
    x: Float[Array, "B ..."],
    levels: Float[Array, "N+1 B ..."],
    t: Float[Array, " N+1"],
    key: PRNGKeyArray,
) -> tuple[Array, Float[Array, " N+1"], Array, Array]:
    r"""Return the criterion of maximum likelihood at $t = 1$, and the trapezoid without its gradient.

    Differentiating the whole integral, samples included, leaves $\mathbb{E}_1[\nabla\log p(x\mid z)]$,
    since $\frac{d}{dt}\,t\,\mathbb{E}_t[g] = \mathbb{E}_t[g] + t\,\mathrm{Cov}_t(\ell, g)$: the other
    power posteriors are there to reach this one. Returns what `thermodynamic` does.
    """
    key, prior_key = jax.random.split(key)
    keys, rest = jax.random.split(key, len(t)), frozen(model)

    def mean(model: "LatentModel", z: Array, key: PRNGKeyArray) -> Array:
        return jnp.mean(model.log_likelihood(x, model.decode(z, key)))

    below = jax.lax.map(lambda item: mean(rest, *item), (levels[:-1], keys[:-1]))
    likelihood = mean(model, levels[-1], keys[-1])
    prior = model.prior.mean_log_prob(levels[-1], prior_key)
    each = jnp.append(below, jax.lax.stop_gradient(likelihood))
    return likelihood + prior, each, trapezoid_weights(t) @ each, prior


def thermodynamic(
    model: "LatentModel",
    x: Float[Array, "B ..."],
    levels: Float[Array, "N+1 B ..."],
    t: Float[Array, " N+1"],
    key: PRNGKeyArray,
) -> tuple[Array, Float[Array, " N+1"], Array, Array]:
    r"""Return the trapezoid of the thermodynamic integral (eq. SS-KAEM), plus the log-prior at $t = 1$.

    `levels` are latents of every power posterior, and held fixed, so that the gradient leaves out the
    term through $p_t$: the generator does not learn by maximum likelihood (see `tempered`). The
    integral alone gives the prior no gradient; at $t = 1$ the log-prior gives it that of maximum
    likelihood. Returns the sum, the $E_k$, the integral (an estimate of $\log p(x)$) and the log-prior.
    """
    generator, static = eqx.partition(model.generator, eqx.is_inexact_array)
    rest = frozen(model)

    def level(generator: Any, item: Any) -> tuple[Array, Array]:
        z, weight, key = item
        now = eqx.tree_at(lambda m: m.generator, rest, eqx.combine(generator, static))
        mean = jnp.mean(now.log_likelihood(x, now.decode(z, key)))
        return weight * mean, mean

    key, prior_key = jax.random.split(key)
    items = (levels, trapezoid_weights(t), jax.random.split(key, len(t)))
    integral, each = _accumulated(level, generator, items)
    prior = model.prior.mean_log_prob(levels[-1], prior_key)
    return integral + prior, each, integral, prior


def _accumulated(
    function: Callable[[Any, Any], tuple[Array, Any]], parameters: Any, items: Any
) -> tuple[Array, Any]:
    """The sum of `function(parameters, item)[0]` over items, and what else it returns for each.

    The gradient in the parameters is accumulated in the same pass, item by item: memory is that of
    one item, and nothing is computed twice.
    """

    def forward(parameters: Any) -> tuple[tuple[Array, Any], Any]:
        def add(carry: Any, item: Any) -> Any:
            (value, each), gradient = jax.value_and_grad(function, has_aux=True)(parameters, item)
            return jax.tree.map(jnp.add, carry, (value, gradient)), each

        zeros = jax.tree.map(jnp.zeros_like, parameters)
        (value, gradient), each = jax.lax.scan(add, (jnp.zeros(()), zeros), items)
        return (value, each), gradient

    def backward(gradient: Any, cotangents: tuple[Array, Any]) -> tuple[Any]:
        return (jax.tree.map(lambda leaf: cotangents[0] * leaf, gradient),)

    total = jax.custom_vjp(lambda parameters: forward(parameters)[0])
    total.defvjp(forward, backward)
    return total(parameters)
