r"""Encoders' guesses, refined: for each example a normal with the mean and the covariance of its posterior.

An encoder's normals are fitted to all examples at once, and are narrower than posteriors: weights of
their draws collapse. Any density proposes, so each example may have one of its own. In coordinates $s$
that are bent into the domain of the prior (`kaem.posterior.guess.bend`), with residuals $\rho(s)$ in units
of $\sigma$, their Jacobian $J$ and $\log\tilde p(s) = \log p(z) + \log|dz/ds|$, the posterior is

$$\pi(s) \propto \exp\big(-\tfrac12|\rho(s)|^2\big)\,\tilde p(s), \qquad
\Lambda(s) = J^\top J - \nabla^2\log\tilde p(s).$$

From the mean of the encoder, Levenberg and Marquardt's steps climb to a mode of $\pi$. A normal
$\mathcal{N}(\mu, \Lambda^{-1})$ there is Laplace's approximation. It is then fitted to where its own draws are,
and not to the mode alone, by the fixed point of the Gaussian bound (Opper and Archambeau, 2009),
$\mathbb{E}\,\nabla\log\pi = 0$ and $\Lambda = \mathbb{E}\,\Lambda(s)$, with a few pairs of draws $\mu \pm \delta$. The
log-prior is a sum over coordinates; where it curves the wrong way, or hardly, half the precision of
the prior takes its place.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .guess import Bent, Normal, bend, straighten

if TYPE_CHECKING:
    from ..models import LatentModel

_CLIMB = 10  # Levenberg-Marquardt steps
_ROUNDS, _PAIRS = 8, 4  # of the Gaussian bound
_GAIN = 0.5
_DRAWS = 512  # of the prior, for its variances
_LOG_2PI = 1.8378770664093453


class Local(NamedTuple):
    """Normals in straight coordinates, with all covariances; $L L^T$ is the precision."""

    mean: Float[Array, "n D"]
    factor: Float[Array, "n D D"]  # L

    def of(self, rows: Any) -> Self:
        """Return the normals of some examples."""
        return type(self)(self.mean[rows], self.factor[rows])

    def at(self, noise: Float[Array, "n D"]) -> Float[Array, "n D"]:
        """Return the straight coordinates that standard normal `noise` makes, one for each example."""

        def one(factor: Array, noise: Array) -> Array:
            return jax.scipy.linalg.solve_triangular(factor, noise, lower=True, trans=1)

        return self.mean + jax.vmap(one)(self.factor, noise)

    def noise(self, straight: Float[Array, "n D"]) -> Float[Array, "n D"]:
        """Return the standard normals that make straight coordinates: the inverse of `at`."""
        return jnp.einsum("nji,nj->ni", self.factor, straight - self.mean)

    def log_volume(self) -> Float[Array, " n"]:
        r"""Return $\log|L|$: what the density of straight coordinates has more than that of its noise."""
        return jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=1, axis2=2)), axis=1)


def standard_log_prob(noise: Float[Array, "*n D"]) -> Float[Array, "*n"]:
    """Return the log-density of standard normals."""
    return -0.5 * jnp.sum(noise**2 + _LOG_2PI, axis=-1)


def refinement_passes(dimensions: int) -> int:
    """Return how many passes of the generator a refinement costs for each example, tangents counted."""
    jacobians = _CLIMB + 1 + 2 * _PAIRS * _ROUNDS
    return jacobians * (dimensions + 1) + _CLIMB


@eqx.filter_jit
def refined(
    model: "LatentModel", x: Float[Array, "B ..."], guess: Normal | Bent, key: PRNGKeyArray
) -> Local:
    """Return a normal for each example, refined from what an encoder says of it."""
    bounds, shape = model.prior.bounds, model.prior.shape
    draws = straighten(model.prior.sample(key, _DRAWS).reshape(_DRAWS, -1), bounds)
    floor = 0.5 / jnp.var(draws, axis=0)
    decode = model.generator.decoder()

    def latent(s: Float[Array, " D"]) -> tuple[Array, Array]:
        z, log_slope = bend(s[None], bounds)
        return z.reshape(1, *shape), log_slope[0]

    def log_prior(s: Float[Array, " D"]) -> Float[Array, ""]:
        z, log_slope = latent(s)
        return model.prior.log_prob(z)[0] + log_slope

    def one(item: tuple[Array, Array, PRNGKeyArray]) -> tuple[Array, Array]:
        x, start, key = item

        def residual(s: Float[Array, " D"]) -> Float[Array, " X"]:
            return (model.seen(decode(latent(s)[0]))[0] - x).reshape(-1) / model.noise

        def value(s: Float[Array, " D"]) -> Float[Array, ""]:
            return log_prior(s) - 0.5 * jnp.sum(residual(s) ** 2)

        def bowl(s: Float[Array, " D"]) -> tuple[Array, Array]:
            """The gradient of log pi, and a precision that is positive."""
            jacobian = jax.jacfwd(residual)(s)
            # The Hessian of a sum over coordinates is diagonal: one product has all of it.
            slope, curvature = jax.jvp(jax.grad(log_prior), (s,), (jnp.ones_like(s),))
            gradient = slope - jacobian.T @ residual(s)
            return gradient, jacobian.T @ jacobian + jnp.diag(jnp.maximum(-curvature, floor))

        return _settled(bowl, *_climbed(value, bowl, start), key)

    start = straighten(guess.mean.reshape(len(x), -1), bounds)
    return Local(*jax.lax.map(one, (x, start, jax.random.split(key, len(x)))))


Bowl = Callable[[Float[Array, " D"]], tuple[Float[Array, " D"], Float[Array, "D D"]]]


def _climbed(value: Any, bowl: Bowl, start: Float[Array, " D"]) -> tuple[Array, Array]:
    """Return a mode, or a point on the way to it, and the precision there."""

    def climb(carry: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
        s, best, damping = carry
        gradient, precision = bowl(s)
        damped = precision + damping * jnp.diag(jnp.diag(precision))
        there = s + jnp.linalg.solve(damped, gradient)
        found = value(there)
        better = found > best  # not where it is NaN
        carry = (
            jnp.where(better, there, s),
            jnp.where(better, found, best),
            damping * jnp.where(better, 0.2, 5.0),
        )
        return carry, None

    first = (start, value(start), jnp.float32(0.01))
    (s, _, _), _ = jax.lax.scan(climb, first, None, length=_CLIMB)
    return s, bowl(s)[1]


def _settled(
    bowl: Bowl, mean: Float[Array, " D"], precision: Float[Array, "D D"], key: PRNGKeyArray
) -> tuple[Array, Array]:
    """Return mean and factor of the precision after a few steps towards the Gaussian bound's fixed point."""

    def settle(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[Any, None]:
        mean, precision = carry
        noise = jax.random.normal(key, (len(mean), _PAIRS))
        factor = jnp.linalg.cholesky(precision)
        delta = jax.scipy.linalg.solve_triangular(factor, noise, lower=True, trans=1).T
        # Pairs cancel the first order of what few draws get wrong.
        gradients, precisions = jax.lax.map(bowl, jnp.concatenate([mean + delta, mean - delta]))
        wanted = (1 - _GAIN) * precision + _GAIN * jnp.mean(precisions, axis=0)
        step = jnp.linalg.solve(wanted, jnp.mean(gradients, axis=0))
        known = jnp.all(jnp.isfinite(wanted)) & jnp.all(jnp.isfinite(step))
        carry = (
            jnp.where(known, mean + _GAIN * step, mean),
            jnp.where(known, wanted, precision),
        )
        return carry, None

    first = (mean, precision)
    (mean, precision), _ = jax.lax.scan(settle, first, jax.random.split(key, _ROUNDS))
    return mean, jnp.linalg.cholesky(precision)
