r"""Chains on the path from prior to posterior, $\pi_t(z) \propto p(z)\,e^{t\,l(z)}$ with $l(z) = \log p(x\mid z)$.

Measuring tolerates no bias from a step size, so all chains here are MALA. Each rung $t_k$ and each
example has a step size of its own, tuned towards an acceptance of 0.574 (Roberts and Rosenthal,
1998) before anything is measured, then frozen. Where the prior's density is zero, outside its
domain, proposals are rejected.

A neural prior $e^{f(z)}\mathcal{N}(z; 0, I)/Z$ cannot be drawn exactly: its path starts at the normal,
with $l = f + \log p(x\mid z)$, or $l = f$ for the prior alone.

A model with an encoder has two paths, since its refined guess $q$ (`kaem.posterior.local`) may be near one
mode of several. With a defence $d$, each latent belongs to the guess or to the prior, by shares
$$r_q(z) = \frac{(1 - d)\,q(z)}{(1 - d)\,q(z) + d\,p(z)},\qquad r_p = 1 - r_q,\qquad
p(x) = \int r_q(z)\,p(x, z)\,dz + \int r_p(z)\,p(x, z)\,dz,$$
and either integral has a path of its own: from $q$, with $l = \log r_q\,p(x, z)/q$, and from the prior, with
$l = \log r_p\,p(x\mid z)$. Where the guess is right, the second is next to nothing. Latents of the first are
the standard normals that make draws of $q$: posteriors are nearly isotropic there, and one step size fits all.
"""

from collections.abc import Callable
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .evaluator import evaluator
from .guess import bend, straighten
from .kernels import MALA, Evaluate, Evaluation, per_chain
from .local import Local, standard_log_prob
from .tempering import Population

if TYPE_CHECKING:
    from ..models import LatentModel

Ladder = Float[Array, " N+1"]
_ACCEPTANCE = 0.574
_FIRST_STEP = 0.1
_GAIN = 0.5  # of log step sizes, while the target keeps changing
DEFENCE = 0.1  # d: the share of the prior in what proposes near a guess
_ODDS = log(DEFENCE / (1 - DEFENCE))  # of the prior, where its density is that of the guess
PILOT = 8  # particles that tune step sizes, at most


class Path(NamedTuple):
    """What is annealed: $l$ and the log-density at $t = 0$, and exact draws of the latter."""

    evaluate: Evaluate  # of latents [..., B, *event]
    draw: Callable[[PRNGKeyArray, int], Float[Array, "n ..."]]


def posterior_path(model: "LatentModel", x: Float[Array, "B ..."]) -> Path:
    """Return the path from the prior to the posteriors of a batch."""
    start = model.prior.start()
    likelihood = evaluator(model, x, start.potential)
    if start.tilt is None:
        return Path(likelihood, start.draw)
    tilted = prior_path(model.prior)

    def joint(z: Array) -> Evaluation:
        here, tilt = likelihood(z), tilted.evaluate(z)
        return here._replace(
            log_likelihood=here.log_likelihood + tilt.log_likelihood,
            likelihood_score=here.likelihood_score + tilt.likelihood_score,
        )

    return Path(joint, start.draw)


def prior_path(prior: Any) -> Path:
    """Return the path from where chains can start exactly to a prior that tilts it."""
    start = prior.start()

    def evaluate(z: Float[Array, "*n Q"]) -> Evaluation:
        flat = z.reshape(-1, z.shape[-1])
        value, pull = jax.vjp(start.tilt, flat)
        (slope,) = pull(jnp.ones_like(value))
        log_prior, score = start.potential(flat)
        return Evaluation(
            value.reshape(z.shape[:-1]),
            slope.reshape(z.shape),
            jnp.sum(log_prior, -1).reshape(z.shape[:-1]),
            score.reshape(z.shape),
        )

    return Path(evaluate, start.draw)


def near_path(model: "LatentModel", x: Float[Array, "B ..."], local: Local) -> Path:
    """Return the path from guesses to their shares of the posteriors of a batch; its latents are noise [..., B, D]."""
    dimensions, bounds = local.mean.shape[1], model.prior.bounds
    posterior = evaluator(model, x, _log_prior(model))
    log_volume = local.log_volume()

    def latents(noise: Float[Array, "B D"]) -> tuple[Array, Array]:
        z, log_slope = bend(local.at(noise), bounds)
        return z.reshape(len(z), *model.prior.shape), log_slope

    def evaluate(noise: Float[Array, "B D"]) -> Evaluation:
        (z, log_slope), pull = jax.vjp(latents, noise)
        here, one = posterior(z), jnp.ones_like(log_slope)
        (likelihood_score,) = pull((here.likelihood_score, 0 * one))
        (prior_score,) = pull((here.prior_score, one))
        guess = standard_log_prob(noise)  # all densities are of the noise
        over = guess - (here.log_prior + log_slope - log_volume)
        share = jax.nn.sigmoid(over - _ODDS)[:, None]
        value = here.log_likelihood - over + jax.nn.log_sigmoid(over - _ODDS)
        slope = likelihood_score + share * (noise + prior_score)
        return Evaluation(value, slope, guess, -noise)

    def draw(key: PRNGKeyArray, n: int) -> Float[Array, "n D"]:
        return jax.random.normal(key, (n, dimensions))

    return Path(_one_by_one(evaluate, 2), draw)


def far_path(model: "LatentModel", x: Float[Array, "B ..."], local: Local) -> Path:
    """Return the path from the prior to what guesses leave of the posteriors of a batch."""
    posterior, log_volume = evaluator(model, x, _log_prior(model)), local.log_volume()

    def log_guess(z: Float[Array, "B ..."]) -> Float[Array, " B"]:
        straight = straighten(z.reshape(len(z), -1), model.prior.bounds)
        _, log_slope = bend(straight, model.prior.bounds)
        return standard_log_prob(local.noise(straight)) + log_volume - log_slope

    def evaluate(z: Float[Array, "B ..."]) -> Evaluation:
        here = posterior(z)
        guess, pull = jax.vjp(log_guess, z)
        (score,) = pull(jnp.ones_like(guess))
        over = guess - here.log_prior
        share = per_chain(jax.nn.sigmoid(over - _ODDS), z)
        return here._replace(
            log_likelihood=here.log_likelihood + jax.nn.log_sigmoid(_ODDS - over),
            likelihood_score=here.likelihood_score - share * (score - here.prior_score),
        )

    return Path(_one_by_one(evaluate, 1 + len(model.prior.shape)), model.prior.sample)


def _log_prior(model: "LatentModel") -> Callable[[Array], tuple[Array, Array]]:
    def log_prior(z: Array) -> tuple[Array, Array]:
        value, pull = jax.vjp(model.prior.log_prob, z)
        return value, pull(jnp.ones_like(value))[0]

    return log_prior


def _one_by_one(evaluate: Evaluate, ndim: int) -> Evaluate:
    """Return the same for more than one latent of each example, whose axes come before the `ndim` last."""

    def mapped(z: Array) -> Evaluation:
        if z.ndim == ndim:
            return evaluate(z)
        more = z.shape[: z.ndim - ndim]
        found = jax.lax.map(evaluate, z.reshape(-1, *z.shape[len(more) :]))
        return jax.tree.map(lambda a: a.reshape(*more, *a.shape[1:]), found)

    return mapped


def _tuning(log_step: Array, acceptance: Array, i: Array, burn_in: int) -> Array:
    """Robbins-Monro for `burn_in` steps; the gain shrinks, so that the step sizes settle."""
    gain = jnp.where(i < burn_in, 2 * (1.0 + i) ** -0.6, 0)
    return log_step + gain * (acceptance - _ACCEPTANCE)


def posterior_chains(
    path: Path,
    chains: int,
    batch: int,
    key: PRNGKeyArray,
    *,
    burn_in: int,
    steps: int,
    step_size: float | None = None,
) -> tuple[Float[Array, "S C B ..."], Float[Array, " B"]]:
    """Return latents of chains at $t = 1$ that start at the prior, after `burn_in` steps, and their acceptance."""
    start_key, key = jax.random.split(key)
    z = path.draw(start_key, chains * batch)
    state = MALA().init(path.evaluate, z.reshape(chains, batch, *z.shape[1:]))

    def step(carry: Any, i: Array) -> Any:
        state, log_step = carry
        eta = jnp.broadcast_to(jnp.exp(log_step), (chains, batch))
        one, at = jnp.ones(()), jax.random.fold_in(key, i)
        state, info = MALA().move(path.evaluate, state, one, eta, at)
        acceptance = jnp.mean(info.acceptance, axis=0)
        if step_size is None:
            log_step = _tuning(log_step, acceptance, i, burn_in)
        return (state, log_step), (state.z, acceptance)

    first = jnp.full(batch, jnp.log(step_size or _FIRST_STEP))
    _, (z, acceptance) = jax.lax.scan(step, (state, first), jnp.arange(burn_in + steps))
    return z[burn_in:], jnp.mean(acceptance[burn_in:], axis=0)


def tempered_chains(
    path: Path, t: Ladder, chains: int, batch: int, key: PRNGKeyArray, *, burn_in: int, steps: int
) -> Float[Array, "S N+1 C B"]:
    """Return $l$ along `chains` independent populations for each example; at $t = 0$, of exact draws."""
    start_key, key = jax.random.split(key)
    rungs, together = len(t) - 1, chains * batch
    z = path.draw(start_key, rungs * together)
    z = z.reshape(rungs, together, *z.shape[1:])
    population = Population(MALA())
    state = population.init(path.evaluate, z)

    def draw(key: PRNGKeyArray) -> Array:
        return path.draw(key, together)

    def step(carry: Any, i: Array) -> Any:
        state, log_step = carry
        step_key, bottom_key = jax.random.split(jax.random.fold_in(key, i))
        eta = jnp.tile(jnp.exp(log_step), (1, chains))
        state, info = population.step(path.evaluate, state, t, eta, step_key, draw)
        acceptance = jnp.mean(info.acceptance.reshape(rungs, chains, batch), axis=1)
        bottom, here = path.evaluate(draw(bottom_key)), state.chains.here
        assert here is not None
        seen = jnp.concatenate([bottom.log_likelihood[None], here.log_likelihood])
        return (state, _tuning(log_step, acceptance, i, burn_in)), seen

    first = jnp.full((rungs, batch), jnp.log(_FIRST_STEP))
    _, seen = jax.lax.scan(step, (state, first), jnp.arange(burn_in + steps))
    return seen[burn_in:].reshape(steps, rungs + 1, chains, batch)


def annealed_weights(
    path: Path,
    t: Ladder,
    particles: int,
    batch: int,
    key: PRNGKeyArray,
    *,
    moves: int,
    log_steps: Float[Array, "N-1 B"] | None = None,
) -> tuple[Float[Array, "M B"], Float[Array, "N-1 B"]]:
    r"""Return $\log w = \sum_k (t_k - t_{k-1})\,l(z_{k-1})$ of independent particles (Neal, 2001).

    Tunes step sizes on the way, which are returned, or takes those of an earlier run: only then
    are weights independent and $\mathbb{E}\,w = p(x)$.
    """
    start_key, key = jax.random.split(key)
    z = path.draw(start_key, particles * batch)
    state = MALA().init(path.evaluate, z.reshape(particles, batch, *z.shape[1:]))

    def rung(carry: Any, item: Any) -> Any:
        state, log_w, log_step = carry
        t, gap, key, given = item
        log_w += gap * state.here.log_likelihood
        log_step = log_step if given is None else given

        def move(i: Array, carry: Any) -> Any:
            state, log_step = carry
            eta = jnp.broadcast_to(jnp.exp(log_step), (particles, batch))
            at = jax.random.fold_in(key, i)
            state, info = MALA().move(path.evaluate, state, t, eta, at)
            if given is None:
                log_step += _GAIN * (jnp.mean(info.acceptance, axis=0) - _ACCEPTANCE)
            return state, log_step

        state, log_step = jax.lax.fori_loop(0, moves, move, (state, log_step))
        return (state, log_w, log_step), log_step

    gaps = jnp.diff(t)
    first = (state, jnp.zeros((particles, batch)), jnp.full(batch, jnp.log(_FIRST_STEP)))
    items = (t[1:-1], gaps[:-1], jax.random.split(key, len(t) - 2), log_steps)
    (state, log_w, _), used = jax.lax.scan(rung, first, items)
    assert state.here is not None
    return log_w + gaps[-1] * state.here.log_likelihood, used


@eqx.filter_jit
def annealed(
    path: Callable[[Any], Path],
    argument: Any,
    t: Ladder,
    particles: int,
    batch: int,
    key: PRNGKeyArray,
    moves: int,
) -> Float[Array, "M B"]:
    """Return `annealed_weights` with step sizes from a pilot run of a few particles."""
    pilot_key, key = jax.random.split(key)
    made = path(argument)
    _, log_steps = annealed_weights(made, t, min(particles, PILOT), batch, pilot_key, moves=moves)
    return annealed_weights(made, t, particles, batch, key, moves=moves, log_steps=log_steps)[0]
