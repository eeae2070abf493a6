r"""How one example takes hold of the latents: $p(z\mid x, t) \propto p(z)\,p(x\mid z)^t$ from $t = 0$ to 1.

A population of particles starts as exact prior draws and is carried along by sequential Monte Carlo
(Del Moral et al., 2006). With $l(z) = \log p(x\mid z)$, a stage goes from $t$ to the farthest $t'$ (at
most the next temperature asked for) at which the weights $w = e^{(t'-t)\,l}$ are worth half of the
particles, resamples, and moves all particles by tuned MALA steps at $t'$, in coordinates in which
their covariance is the identity: a posterior is narrow where the example says much and wide where
it does not. The product of the mean weights estimates $p(x)$.

How much a coordinate moved is $\mathrm{KL}(p(z_q\mid x,t)\,\|\,p(z_q))$: with $u = F_q(z_q)$, uniform under
the prior, it is minus the differential entropy of $u$.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from ..learning.schedules import checked_ladder
from ..models import AbstractModel, LatentModel
from ..posterior.annealing import Path, posterior_path
from ..posterior.kernels import MALA, Evaluate, Evaluation
from ..posterior.resampling import systematic
from .curves import Place, places_at

LADDER = tuple((k / 8) ** 4 for k in range(9))  # a likelihood of many pixels takes hold early
_ACCEPTANCE = 0.574
_TOGETHER = 128  # particles decoded at once
_MOST_STAGES = 1000


class PowerPosteriors(NamedTuple):
    """Particles of one example's power posteriors, one row for each temperature."""

    x: Float[np.ndarray, "..."]
    t: Float[np.ndarray, " T"]
    latents: Float[np.ndarray, "T M ..."]
    log_likelihood: Float[np.ndarray, "T M"]
    log_evidence: Float[np.ndarray, " T"]  # log of the integral of p(z) p(x|z)^t
    acceptance: Float[np.ndarray, " T"]  # of the last MALA steps before each; NaN at t = 0
    moved: Float[np.ndarray, "T ..."]  # nats, coordinate by coordinate
    made: Float[np.ndarray, "..."]  # E[G(z) | x], the mean reconstruction at the last t

    @property
    def expected(self) -> Float[np.ndarray, " T"]:
        r"""$\mathbb{E}_t[\log p(x\mid z)]$."""
        return self.log_likelihood.mean(axis=1)

    def most_moved(self, count: int) -> list[Place]:
        """Return the coordinates about which the example says most."""
        last = self.moved[-1]
        return places_at(np.argsort(-last, axis=None, kind="stable")[:count], last.shape)


def power_posteriors(
    model: AbstractModel,
    x: Float[Array | np.ndarray, "..."],
    key: PRNGKeyArray,
    *,
    t: Sequence[float] = LADDER,
    particles: int = 512,
    moves: int = 40,
) -> PowerPosteriors:
    """Return the power posteriors of one example at the temperatures `t`, which go from 0 to 1.

    `moves` is the number of MALA steps of a stage; there are as many stages as the weights need.
    """
    model = model.with_quantiles("power posteriors")
    if particles < 2 or moves < 1:
        raise ValueError(
            f"power posteriors need at least 2 particles and 1 move, got {particles} and {moves}."
        )
    ladder = checked_ladder(t)
    x = model.checked_data(jnp.asarray(x)[None])
    model = model.prepared()
    together = min(_TOGETHER, particles)
    rows = -(-particles // together)
    start_key, key = jax.random.split(key)
    carry = _started(model, x, start_key, rows, together)
    kept = [carry]
    for target in ladder[1:]:
        for _ in range(_MOST_STAGES):
            key, stage_key = jax.random.split(key)
            carry = _stage(model, x, carry, jnp.float32(target), stage_key, moves)
            if float(carry.t) >= target:
                break
        else:
            raise ValueError(
                f"{_MOST_STAGES} stages did not reach t = {target}: the likelihood is too sharp for "
                f"{particles} particles; give more."
            )
        kept.append(carry)
    latents, likelihoods = (
        np.stack([np.asarray(leaf).reshape(rows * together, *leaf.shape[2:]) for leaf in leaves])
        for leaves in zip(*((c.z, c.log_likelihood) for c in kept), strict=True)
    )
    return PowerPosteriors(
        np.asarray(x[0]),
        ladder.astype(float),
        latents,
        likelihoods,
        np.array([float(c.log_evidence) for c in kept]),
        np.array([float(c.acceptance) for c in kept]),
        np.stack([moved(model, z) for z in latents]),
        np.asarray(_decoded_mean(model, carry.z)),
    )


class _Carry(NamedTuple):
    z: Float[Array, "R C ..."]
    log_likelihood: Float[Array, "R C"]
    t: Float[Array, ""]
    log_evidence: Float[Array, ""]
    log_step: Float[Array, ""]
    acceptance: Float[Array, ""]


def _path(model: LatentModel, x: Float[Array, "1 ..."], together: int) -> Path:
    return posterior_path(model, jnp.broadcast_to(x, (together, *x.shape[1:])))


@eqx.filter_jit
def _started(model: LatentModel, x: Array, key: PRNGKeyArray, rows: int, together: int) -> _Carry:
    path = _path(model, x, together)
    z = path.draw(key, rows * together)
    z = z.reshape(rows, together, *z.shape[1:])
    zero = jnp.zeros(())
    return _Carry(z, path.evaluate(z).log_likelihood, zero, zero, zero, jnp.nan + zero)


@eqx.filter_jit
def _stage(
    model: LatentModel, x: Array, carry: _Carry, target: Array, key: PRNGKeyArray, moves: int
) -> _Carry:
    """Reweight as far as the weights allow, resample, move."""
    z, t, shape = carry.z, carry.t, carry.log_likelihood.shape
    number = shape[0] * shape[1]
    likelihoods = carry.log_likelihood.reshape(number)
    gap = _farthest(likelihoods, target - t)
    t = jnp.where(gap >= target - t, target, t + gap)
    log_w = gap * likelihoods
    log_evidence = carry.log_evidence + jax.nn.logsumexp(log_w) - jnp.log(number)

    resample_key, key = jax.random.split(key)
    counts = systematic(resample_key, jax.nn.softmax(log_w)).astype(jnp.int32)
    chosen = jnp.repeat(jnp.arange(number), counts, total_repeat_length=number)
    z = z.reshape(number, *z.shape[2:])[chosen].reshape(z.shape)
    factor = _spread(z.reshape(number, -1))
    evaluate = _stretched(_path(model, x, shape[1]).evaluate, factor, z.shape[2:])

    def move(carry: Any, key: PRNGKeyArray) -> Any:
        state, log_step = carry
        eta = jnp.broadcast_to(jnp.exp(log_step), shape)
        state, info = MALA().move(evaluate, state, t, eta, key)
        acceptance = jnp.mean(info.acceptance)
        return (state, log_step + acceptance - _ACCEPTANCE), acceptance

    y = jax.scipy.linalg.solve_triangular(factor, z.reshape(number, -1).T, lower=True).T
    start = MALA().init(evaluate, y.reshape(*shape, -1))
    (moved, log_step), acceptance = jax.lax.scan(
        move, (start, carry.log_step), jax.random.split(key, moves)
    )
    assert moved.here is not None
    z = (moved.z @ factor.T).reshape(z.shape)
    return _Carry(
        z, moved.here.log_likelihood, t, log_evidence, log_step, jnp.mean(acceptance[moves // 2 :])
    )


def _spread(z: Float[Array, "M D"]) -> Float[Array, "D D"]:
    """Return a triangular factor of the particles' covariance, shrunk towards its diagonal."""
    number, dimension = z.shape
    covariance = jnp.atleast_2d(jnp.cov(z.T))
    diagonal = jnp.diag(jnp.diag(covariance) + 1e-12)
    share = dimension / (dimension + number)
    return jnp.linalg.cholesky((1 - share) * covariance + share * diagonal)


def _stretched(evaluate: Evaluate, factor: Float[Array, "D D"], event: tuple[int, ...]) -> Evaluate:
    """Return `evaluate` as a function of y with z = L y, where one step size suits all directions."""

    def stretched(y: Float[Array, "*n D"]) -> Evaluation:
        here = evaluate((y @ factor.T).reshape(*y.shape[:-1], *event))
        slopes = (here.likelihood_score, here.prior_score)
        likelihood, prior = (slope.reshape(y.shape) @ factor for slope in slopes)
        return here._replace(likelihood_score=likelihood, prior_score=prior)

    return stretched


def _farthest(likelihoods: Float[Array, " M"], gap: Array) -> Array:
    """Return the largest step in t, up to `gap`, after which the weights are worth half of the particles."""

    def worth(gap: Array) -> Array:
        log_w = jax.nn.log_softmax(gap * likelihoods)
        return jnp.exp(-jax.nn.logsumexp(2 * log_w)) / len(likelihoods)

    def halve(_: int, bounds: Any) -> Any:
        low, high = bounds  # of log gap: the first steps are tiny
        middle = (low + high) / 2
        enough = worth(jnp.exp(middle)) >= 0.5
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 30, halve, (jnp.log(gap) - 30, jnp.log(gap)))
    return jnp.where(worth(gap) >= 0.5, gap, jnp.exp(low))


@eqx.filter_jit
def _decoded_mean(model: LatentModel, z: Float[Array, "R C ..."]) -> Float[Array, "..."]:
    decode = model.generator.decoder()
    return jnp.mean(jax.lax.map(lambda z: jnp.mean(decode(z), axis=0), z), axis=0)


def moved(model: LatentModel, z: Float[np.ndarray, "M ..."]) -> Float[np.ndarray, "..."]:
    r"""Return the $\mathrm{KL}$ of the marginals of particles from the prior's, by Vasicek's entropy."""
    u = np.asarray(model.prior.cdf(jnp.asarray(z)))
    return np.maximum(-stats.differential_entropy(u, axis=0, method="vasicek"), 0)
