r"""Importance sampling: $\log\frac1S\sum_s w_s$ of weights whose mean is $p(x)$.

Without an encoder, proposals are draws of the prior that all examples share, and $w = p(x\mid z)$. With
one, each example has its own, from a defensive mixture of its refined guess (`kaem.posterior.local`),
as it is and widened, and of the prior (Hesterberg, 1995),

$$q'(z) = \tfrac{1 - d}2\big(q_1(z) + q_c(z)\big) + d\,p(z), \qquad
w = \frac{p(x\mid z)\,p(z)}{q'(z)} \le \frac{p(x\mid z)}{d},$$

so that no latent that the prior allows has an unbounded weight, however wrong the guess is. Of each part
the same number of proposals is drawn every time, which can only lower the variance.
"""

from math import ceil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...models import LatentModel
from ...posterior.annealing import DEFENCE
from ...posterior.guess import bend, straighten
from ...posterior.local import Local, standard_log_prob
from .task import Estimate, Task, from_weights

_CHUNK = 256  # proposals decoded at once
_WIDENED = 1.2  # c


def importance(task: Task) -> Estimate:
    """Estimate log p(x) with proposals from the prior, or from refined guesses."""
    samples = task.effort.samples
    if task.local is not None:
        log_w = _local_weights(task.model, task.x, task.local, task.own, samples)
        return from_weights(np.asarray(log_w, float))
    chunks = max(ceil(samples / _CHUNK), min(samples, 16))
    each = ceil(samples / chunks)
    sums = _prior_weights(task.model, task.x, task.shared, chunks, each)
    first, second = (np.asarray(part, float) for part in sums)
    return from_weights(first, second, chunks * each)._replace(shared=first - np.log(each))


@eqx.filter_jit
def _prior_weights(
    model: LatentModel, x: Float[Array, "B ..."], key: PRNGKeyArray, chunks: int, each: int
) -> tuple[Float[Array, "K B"], Float[Array, "K B"]]:
    """Return sums of weights and of their squares over chunks of proposals that all examples share."""

    def chunk(key: PRNGKeyArray) -> tuple[Array, Array]:
        means = model.decode(model.prior.sample(key, each))
        log_w = model.log_likelihood_matrix(x, means)
        return jax.nn.logsumexp(log_w, axis=1), jax.nn.logsumexp(2 * log_w, axis=1)

    return jax.lax.map(chunk, jax.random.split(key, chunks))


@eqx.filter_jit
def _local_weights(
    model: LatentModel, x: Float[Array, "B ..."], local: Local, key: PRNGKeyArray, samples: int
) -> Float[Array, "S B"]:
    """Return the logarithms of the weights of each example's own proposals."""
    bounds, shape = model.prior.bounds, model.prior.shape
    batch, dimensions = local.mean.shape
    log_volume, decode = local.log_volume(), model.generator.decoder()
    from_prior = max(1, round(DEFENCE * samples))
    widened = (samples - from_prior) // 2
    as_it_is = samples - from_prior - widened
    scales = jnp.where(jnp.arange(samples - from_prior) < as_it_is, 1.0, _WIDENED)
    share = np.log(np.array([as_it_is, widened, from_prior]) / samples + 1e-30)

    def weight(straight: Float[Array, "B D"]) -> Float[Array, " B"]:
        z, log_slope = bend(straight, bounds)
        z, noise = z.reshape(-1, *shape), local.noise(straight)
        wide = standard_log_prob(noise / _WIDENED) - dimensions * np.log(_WIDENED)
        # The guesses' densities over the prior's, both of straight coordinates.
        over = log_volume - model.prior.log_prob(z) - log_slope
        parts = [share[0] + standard_log_prob(noise) + over, share[1] + wide + over]
        proposal = jnp.logaddexp(jnp.logaddexp(*parts), share[2])
        return model.log_likelihood(x, decode(z)) - proposal

    def of_guess(item: tuple[PRNGKeyArray, Array]) -> Float[Array, " B"]:
        key, scale = item
        return weight(local.at(scale * jax.random.normal(key, (batch, dimensions))))

    def of_prior(key: PRNGKeyArray) -> Float[Array, " B"]:
        return weight(straighten(model.prior.sample(key, batch).reshape(batch, -1), bounds))

    guess_key, prior_key = jax.random.split(key)
    near = jax.lax.map(of_guess, (jax.random.split(guess_key, len(scales)), scales))
    far = jax.lax.map(of_prior, jax.random.split(prior_key, from_prior))
    return jnp.concatenate([near, far])
