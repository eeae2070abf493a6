r"""Chains on the path from prior to posterior, $\pi_t(z) \propto p(z)\,e^{t\,l(z)}$ with $l(z) = \log p(x\mid z)$.

Measuring tolerates no bias from a step size, so all chains here are MALA. Each rung $t_k$ and each
example has a step size of its own, tuned towards an acceptance of 0.574 (Roberts and Rosenthal,
1998) before anything is measured, then frozen. Where the prior's density is zero, outside its
domain, proposals are rejected.

A neural prior $e^{f(z)}\mathcal{N}(z; 0, I)/Z$ cannot be drawn exactly: its path starts at the normal,
with $l = f + \log p(x\mid z)$, or $l = f$ for the prior alone.

The path of a model with an encoder starts at the refined guess $q$ instead (`kaem.posterior.local`), of
which a share $d$ is the prior, in case the posterior is elsewhere too: $q' = (1 - d)\,q + d\,p$ and
$\pi_t \propto q'^{1-t}\,(p(x\mid z)\,p(z))^t$, that is $l = \log p(x\mid z)\,p(z)/q'$. Its latents are the standard
normals that make draws of $q$: posteriors are nearly isotropic there, and one step size fits all.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .evaluator import evaluator
from .guess import bend, straighten
from .kernels import MALA, Evaluate, Evaluation
from .local import Local, standard_log_prob
from .tempering import Population

if TYPE_CHECKING:
    from ..models import LatentModel

Ladder = Float[Array, " N+1"]
_ACCEPTANCE = 0.574
_FIRST_STEP = 0.1
_GAIN = 0.5  # of log step sizes, while the target keeps changing
DEFENCE = 0.1  # d: the share of the prior in what proposes near a guess
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


def local_path(model: "LatentModel", x: Float[Array, "B ..."], local: Local) -> Path:
    """Return the path from defended guesses to the posteriors of a batch; its latents are noise [..., B, D]."""
    batch, dimensions = local.mean.shape
    bounds = model.prior.bounds

    def log_prior(z: Array) -> tuple[Array, Array]:
        value, pull = jax.vjp(model.prior.log_prob, z)
        return value, pull(jnp.ones_like(value))[0]

    posterior = evaluator(model, x, log_prior)
    log_volume = local.log_volume()

    def latents(noise: Float[Array, "B D"]) -> tuple[Array, Array]:
        z, log_slope = bend(local.at(noise), bounds)
        return z.reshape(len(z), *model.prior.shape), log_slope

    def evaluate(noise: Float[Array, "*n B D"]) -> Evaluation:
        if noise.ndim > 2:
            each = noise.reshape(-1, *noise.shape[-2:])
            found = jax.lax.map(evaluate, each)
            return jax.tree.map(lambda a: a.reshape(*noise.shape[:-2], *a.shape[1:]), found)
        (z, log_slope), pull = jax.vjp(latents, noise)
        here, one = posterior(z), jnp.ones_like(log_slope)
        (likelihood_score,) = pull((here.likelihood_score, 0 * one))
        (prior_score,) = pull((here.prior_score, one))
        # All densities are of the noise; q' is the guess's, defended by the prior's.
        parts = jnp.stack([standard_log_prob(noise), here.log_prior + log_slope - log_volume])
        weighted = parts + jnp.log(jnp.array([1 - DEFENCE, DEFENCE]))[:, None]
        proposal, share = jax.nn.logsumexp(weighted, axis=0), jax.nn.softmax(weighted, axis=0)
        score = share[0, :, None] * -noise + share[1, :, None] * prior_score
        value = here.log_likelihood + parts[1] - proposal
        return Evaluation(value, likelihood_score + prior_score - score, proposal, score)

    def draw(key: PRNGKeyArray, n: int) -> Float[Array, "n D"]:
        noise_key, prior_key, which_key = jax.random.split(key, 3)
        straight = straighten(model.prior.sample(prior_key, n).reshape(n, -1), bounds)
        far = jax.vmap(local.noise)(straight.reshape(-1, batch, dimensions)).reshape(n, -1)
        from_prior = jax.random.bernoulli(which_key, DEFENCE, (n, 1))
        return jnp.where(from_prior, far, jax.random.normal(noise_key, (n, dimensions)))

    return Path(evaluate, draw)


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
