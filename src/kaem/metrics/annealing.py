r"""Chains on the path from prior to posterior, $\pi_t(z) \propto p(z)\,e^{t\,l(z)}$ with $l(z) = \log p(x\mid z)$.

Measuring tolerates no bias from a step size, so all chains here are MALA. Each rung $t_k$ and each
example has a step size of its own, tuned towards an acceptance of 0.574 (Roberts and Rosenthal,
1998) before anything is measured, then frozen. Where the prior's density is zero, outside its
domain, proposals are rejected.

A neural prior $e^{f(z)}\mathcal{N}(z; 0, I)/Z$ cannot be drawn exactly: its path starts at the normal,
with $l = f + \log p(x\mid z)$, or $l = f$ for the prior alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..baselines import NeuralPrior, NormalPrior
from ..model import LatentModel
from ..posterior import MALA, Population
from ..posterior.chains import evaluator
from ..posterior.samplers import Evaluate, Evaluation, Info, State, per_chain, score

_ACCEPTANCE = 0.574
_FIRST_STEP = 0.1
_GAIN = 0.5  # of log step sizes, while the target keeps changing


class Path(NamedTuple):
    """What is annealed: $l$ and the log-density at $t = 0$, and exact draws of the latter."""

    evaluate: Evaluate  # of latents [..., B, *event]
    draw: Callable[[PRNGKeyArray, int], Float[Array, "n ..."]]


def posterior_path(model: LatentModel, x: Float[Array, "B ..."]) -> Path:
    """From the prior to the posteriors of a batch."""
    prior = model.prior
    if isinstance(prior, NormalPrior):
        return Path(evaluator(model, x, _normal), prior.sample)
    if isinstance(prior, NeuralPrior):
        likelihood = evaluator(model, x, _normal)

        def joint(z: Array) -> Evaluation:
            here, tilt = likelihood(z), _tilted(prior, z)
            return here._replace(
                log_likelihood=here.log_likelihood + tilt.log_likelihood,
                likelihood_score=here.likelihood_score + tilt.likelihood_score,
            )

        return Path(joint, prior.normal)
    potential, draw = prior.for_chains()
    return Path(evaluator(model, x, potential), draw)


def prior_path(prior: NeuralPrior) -> Path:
    """From the standard normal to a neural prior."""
    return Path(lambda z: _tilted(prior, z), prior.normal)


def _normal(z: Float[Array, "n Q"]) -> tuple[Array, Array]:
    return -0.5 * z**2, -z


def _tilted(prior: NeuralPrior, z: Float[Array, "*n Q"]) -> Evaluation:
    value, pull = jax.vjp(lambda z: prior.tilt(z.reshape(-1, z.shape[-1])), z)
    (slope,) = pull(jnp.ones_like(value))
    return Evaluation(value.reshape(z.shape[:-1]), slope, -0.5 * jnp.sum(z**2, -1), -z)


class Metropolis(MALA):
    """MALA with a step size for each chain, which also reports the acceptance of each."""

    step_size: Float[Array, "*n"]  # type: ignore[assignment]

    def move(
        self, evaluate: Evaluate, state: State, t: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        noise_key, accept_key = jax.random.split(key)
        eta = per_chain(self.step_size, state.z)
        drift = eta * score(state, t)
        noise = jax.random.normal(noise_key, state.z.shape)
        z = state.z + drift + jnp.sqrt(2 * eta) * noise
        there = State(z, evaluate(z), state.moves)

        def log_density(at: State, move: Array) -> Array:
            """Of standing here and then making this move, as a multiple of its noise."""
            assert at.here is not None
            chains = at.here.log_prior.ndim
            squares = jnp.sum(move**2, axis=tuple(range(chains, move.ndim)))
            return t * at.here.log_likelihood + at.here.log_prior - squares / 2

        back = (state.z - z - eta * score(there, t)) / jnp.sqrt(2 * eta)
        ratio = jnp.exp(jnp.minimum(log_density(there, back) - log_density(state, noise), 0))
        accept = jax.random.uniform(accept_key, ratio.shape) < ratio  # never where it is NaN

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(per_chain(accept, new), new, old)

        here = jax.tree.map(choose, there.here, state.here)
        kept = State(choose(z, state.z), here, state.moves + 1)
        return kept, Info(jnp.nan_to_num(ratio), jnp.sqrt(jnp.mean(drift**2)), jnp.zeros(()))


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
    """Latents of chains at $t = 1$ that start at the prior, after `burn_in` steps, and their acceptance."""
    start_key, key = jax.random.split(key)
    z = path.draw(start_key, chains * batch)
    state = Metropolis(jnp.zeros(())).init(path.evaluate, z.reshape(chains, batch, *z.shape[1:]))

    def step(carry: Any, i: Array) -> Any:
        state, log_step = carry
        eta = jnp.broadcast_to(jnp.exp(log_step), (chains, batch))
        one, at = jnp.ones(()), jax.random.fold_in(key, i)
        state, info = Metropolis(eta).move(path.evaluate, state, one, at)
        acceptance = jnp.mean(info.acceptance, axis=0)
        if step_size is None:
            log_step = _tuning(log_step, acceptance, i, burn_in)
        return (state, log_step), (state.z, acceptance)

    first = jnp.full(batch, jnp.log(step_size or _FIRST_STEP))
    _, (z, acceptance) = jax.lax.scan(step, (state, first), jnp.arange(burn_in + steps))
    return z[burn_in:], jnp.mean(acceptance[burn_in:], axis=0)


def tempered_chains(
    path: Path,
    t: Float[Array, " N+1"],
    chains: int,
    batch: int,
    key: PRNGKeyArray,
    *,
    burn_in: int,
    steps: int,
) -> Float[Array, "S N+1 C B"]:
    """$l$ along `chains` independent populations for each example; at $t = 0$, of exact draws."""
    start_key, key = jax.random.split(key)
    rungs, together = len(t) - 1, chains * batch
    z = path.draw(start_key, rungs * together)
    z = z.reshape(rungs, together, *z.shape[1:])
    state = Population(Metropolis(jnp.zeros(()))).init(path.evaluate, z)

    def draw(key: PRNGKeyArray) -> Array:
        return path.draw(key, together)

    def step(carry: Any, i: Array) -> Any:
        state, log_step = carry
        step_key, bottom_key = jax.random.split(jax.random.fold_in(key, i))
        eta = jnp.tile(jnp.exp(log_step), (1, chains))
        population = Population(Metropolis(eta))
        state, info = population.step(path.evaluate, state, t, step_key, draw)
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
    t: Float[Array, " N+1"],
    particles: int,
    batch: int,
    key: PRNGKeyArray,
    *,
    moves: int,
    log_steps: Float[Array, "N-1 B"] | None = None,
) -> tuple[Float[Array, "M B"], Float[Array, "N-1 B"]]:
    r"""$\log w = \sum_k (t_k - t_{k-1})\,l(z_{k-1})$ of independent particles (Neal, 2001).

    Tunes step sizes on the way, which are returned, or takes those of an earlier run: only then
    are weights independent and $\mathbb{E}\,w = p(x)$.
    """
    start_key, key = jax.random.split(key)
    z = path.draw(start_key, particles * batch)
    state = Metropolis(jnp.zeros(())).init(path.evaluate, z.reshape(particles, batch, *z.shape[1:]))

    def rung(carry: Any, item: Any) -> Any:
        state, log_w, log_step = carry
        t, gap, key, given = item
        log_w += gap * state.here.log_likelihood
        log_step = log_step if given is None else given

        def move(i: Array, carry: Any) -> Any:
            state, log_step = carry
            eta = jnp.broadcast_to(jnp.exp(log_step), (particles, batch))
            state, info = Metropolis(eta).move(path.evaluate, state, t, jax.random.fold_in(key, i))
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
    t: Float[Array, " N+1"],
    particles: int,
    batch: int,
    key: PRNGKeyArray,
    moves: int,
) -> Float[Array, "M B"]:
    """`annealed_weights` with step sizes from a pilot run of a few particles."""
    pilot_key, key = jax.random.split(key)
    made = path(argument)
    _, log_steps = annealed_weights(made, t, min(particles, 8), batch, pilot_key, moves=moves)
    return annealed_weights(made, t, particles, batch, key, moves=moves, log_steps=log_steps)[0]
