"""What chains ask of a batch of posteriors: log-likelihood, log-prior, and their gradients."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..parallel import of_batch
from .kernels import Evaluate, Evaluation

if TYPE_CHECKING:
    from ..models import LatentModel


def evaluator(
    model: "LatentModel",
    x: Float[Array, "B ..."],
    potential: Callable[[Array], tuple[Array, Array]],
) -> Evaluate:
    """Return `evaluate` of a batch x [B, ...], for latents [..., B, *event] of any number of chains for each example.

    `potential` makes log p and its score of latents [B, *event], the former as a whole or by
    coordinates.
    """
    residuals = model.residuals(x)
    event = model.prior.shape
    precision = 1 / model.noise**2

    def evaluate(
        z: Float[Array, "*n B event"], key: PRNGKeyArray | None = None, share: float = 1.0
    ) -> Evaluation:
        """With a `key`, the likelihood's gradient is estimated from a `share` of the pixels."""
        batch = z.shape[: z.ndim - len(event)]
        if len(batch) > 1:  # one batch after the other: all at once would leave the caches
            each = z.reshape(-1, *z.shape[len(batch) - 1 :])
            found = jax.lax.map(lambda z: evaluate(z, key, share), each)
            return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[2:]), found)
        gaps, pull = jax.vjp(residuals, z)
        squares = jnp.sum(jnp.stack([_squares(gap) for gap in gaps]), axis=0)
        if key is not None:
            keys = jax.random.split(key, len(gaps))
            gaps = tuple(
                jnp.where(_chosen(k, share, gap.shape), gap / share, 0)
                for k, gap in zip(keys, gaps, strict=True)
            )
        (gradient,) = pull(tuple(-precision * gap for gap in gaps))
        log_prior, prior_score = potential(z)
        return Evaluation(
            -0.5 * precision * squares - model.log_constant,
            gradient,
            jnp.sum(log_prior.reshape(len(z), -1), axis=1),
            prior_score,
        )

    return evaluate


def _chosen(key: PRNGKeyArray, share: float, shape: tuple[int, ...]) -> Bool[Array, "... n X"]:
    return of_batch(lambda shape: jax.random.bernoulli(key, share, shape), shape, axis=-2)


def _squares(gap: Float[Array, "... n X"]) -> Float[Array, " n"]:
    return jnp.sum(gap**2, axis=tuple(i for i in range(gap.ndim) if i != gap.ndim - 2))
