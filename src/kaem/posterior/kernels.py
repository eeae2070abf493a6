r"""Markov chains on latent posteriors: ULA, MALA and SGLD, sharing one shape.

A sampler has `init(evaluate, z) -> State` and `step(evaluate, state, t, eta, key) -> (State, Info)`,
where `evaluate(z)` gives log-likelihood, log-prior and their gradients, $t$ is the temperature of
the power posterior $p(x\mid z)^t\,p(z)$, and $\eta$ the step size. A step is `look`, which evaluates
where the chain stands, and `move`; tempering exchanges states between the two.

All batches are leading axes; `t` and `eta` broadcast against them, so that every chain may have its own.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..parallel import of_batch


class Evaluation(NamedTuple):
    """What is known about latents z: one number, or one gradient, for each chain."""

    log_likelihood: Float[Array, "*n"]
    likelihood_score: Float[Array, "*n event"]
    log_prior: Float[Array, "*n"]
    prior_score: Float[Array, "*n event"]


Domain = tuple[Float[Array, "*event"], Float[Array, "*event"]]
Evaluate = Callable[[Float[Array, "*n event"]], Evaluation]
Number = Array | float


class State(NamedTuple):
    """Where chains stand, what is known there (None: not evaluated yet), and how often they moved."""

    z: Float[Array, "*n event"]
    here: Evaluation | None
    moves: Int[Array, ""]


class Info(NamedTuple):
    """What one step did."""

    acceptance: Float[Array, "*n"]  # the probability of each chain's move; 1 where none is rejected
    drift: Float[Array, ""]  # root mean square of the deterministic part of the move
    astray: Float[Array, ""]  # share of latents that drifted through half of the domain at once


def per_chain(value: Array, like: Array) -> Array:
    """Return `value` with trailing axes added until it broadcasts against `like`."""
    return jnp.asarray(value).reshape(jnp.shape(value) + (1,) * (like.ndim - jnp.ndim(value)))


def normal_like(state: State, key: PRNGKeyArray) -> Float[Array, "*n event"]:
    """Return standard normal noise for every latent of evaluated chains, the same on any number of devices."""
    if state.here is None:
        raise ValueError("the state has not been evaluated; call `look` first.")
    examples = state.here.log_prior.ndim - 1  # the last of the axes that are not of a latent
    return of_batch(lambda shape: jax.random.normal(key, shape), state.z.shape, axis=examples)


def score(state: State, t: Array) -> Array:
    r"""Return $t\,\nabla\log p(x\mid z) + \nabla\log p(z)$ of evaluated chains, [*n, *event]."""
    here = state.here
    if here is None:
        raise ValueError("the state has not been evaluated; call `look` first.")
    return per_chain(t, state.z) * here.likelihood_score + here.prior_score


def reflected(z: Float[Array, "*n event"], domain: Domain | None) -> Float[Array, "*n event"]:
    """Return `z` as it is within the domain, and mirrored at the border as often as it takes beyond it."""
    if domain is None:
        return z
    lo, hi = domain
    width = hi - lo
    folded = jnp.clip(hi - jnp.abs(jnp.mod(z - lo, 2 * width) - width), lo, hi)
    return jnp.where((z >= lo) & (z <= hi), z, folded)


def _astray(drift: Float[Array, "*n event"], domain: Domain | None) -> Float[Array, ""]:
    """The share of latents whose drift is not finite, or more than half of the domain at once."""
    if domain is None:
        return jnp.mean(~jnp.isfinite(drift))
    lo, hi = domain
    return jnp.mean(~(jnp.abs(drift) <= (hi - lo) / 2))


class AbstractSampler(eqx.Module):
    """One chain for each latent, any number of latents at once.

    Where the prior has a `domain`, its lower and upper ends, chains do not leave it: unadjusted
    moves are reflected at the border, and Metropolis rejects what has no density.
    """

    domain: eqx.AbstractVar[Domain | None]

    def init(self, evaluate: Evaluate, z: Array) -> State:
        """Return chains that start at `z`."""
        return State(z, None, jnp.int32(0))

    def look(self, evaluate: Evaluate, state: State, key: PRNGKeyArray) -> State:
        """Return the state with its evaluation."""
        return state if state.here is not None else state._replace(here=evaluate(state.z))

    @abstractmethod
    def move(
        self, evaluate: Evaluate, state: State, t: Array, eta: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        """Make one local move of an evaluated state at temperature `t` with step size `eta`."""

    def step(
        self, evaluate: Evaluate, state: State, t: Number, eta: Number, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        """Evaluate where chains stand, then move: return the next state, and what happened."""
        look_key, move_key = jax.random.split(key)
        state = self.look(evaluate, state, look_key)
        return self.move(evaluate, state, jnp.asarray(t), jnp.asarray(eta), move_key)


def _unadjusted(
    state: State, t: Array, eta: Array, noise: Array, domain: Domain | None
) -> tuple[State, Info]:
    r"""$z + \eta\nabla\log\pi + \sqrt{2\eta}\,\xi$, reflected at the border of the domain."""
    eta = per_chain(eta, state.z)
    drift = eta * score(state, t)
    z = reflected(state.z + drift + jnp.sqrt(2 * eta) * noise, domain)
    info = Info(jnp.ones(()), jnp.sqrt(jnp.mean(drift**2)), _astray(drift, domain))
    return State(z, None, state.moves + 1), info


class ULA(AbstractSampler):
    r"""Unadjusted Langevin: $z + \eta\nabla\log\pi + \sqrt{2\eta}\,\xi$ (eq. ula); bias $O(\eta)$."""

    domain: Domain | None = None
    noise_scale: float = eqx.field(static=True, default=1.0)  # of xi, where somebody tempers it

    def move(
        self, evaluate: Evaluate, state: State, t: Array, eta: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        noise = self.noise_scale * normal_like(state, key)
        return _unadjusted(state, t, eta, noise, self.domain)


class MALA(AbstractSampler):
    """Langevin proposals accepted or rejected by Metropolis: no bias from the step size."""

    domain: Domain | None = None

    def init(self, evaluate: Evaluate, z: Array) -> State:
        return State(z, evaluate(z), jnp.int32(0))

    def move(
        self, evaluate: Evaluate, state: State, t: Array, eta: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        noise_key, accept_key = jax.random.split(key)
        eta = per_chain(eta, state.z)
        drift = eta * score(state, t)
        noise = normal_like(state, noise_key)
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
        draw = of_batch(lambda shape: jax.random.uniform(accept_key, shape), ratio.shape, axis=-1)
        accept = draw < ratio  # never where it is NaN

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(per_chain(accept, new), new, old)

        here = jax.tree.map(choose, there.here, state.here)
        kept = State(choose(z, state.z), here, state.moves + 1)
        return kept, Info(jnp.nan_to_num(ratio), jnp.sqrt(jnp.mean(drift**2)), jnp.zeros(()))


class SGLD(AbstractSampler):
    r"""Stochastic-gradient Langevin (Welling and Teh, 2011): decreasing steps, noisy gradients.

    Step $k$ is $\eta\,(1 + k)^{-\gamma}$. With `share` below one, each step sees a random share of
    the observed dimensions; `evaluate` must then be able to take a `key` and a `share`.
    """

    domain: Domain | None = None
    decay: float = eqx.field(static=True, default=0.33)  # gamma
    share: float = eqx.field(static=True, default=1.0)

    def look(self, evaluate: Evaluate, state: State, key: PRNGKeyArray) -> State:
        if self.share == 1 or state.here is not None:
            return super().look(evaluate, state, key)
        return state._replace(here=evaluate(state.z, key=key, share=self.share))  # type: ignore[call-arg]

    def rate(self, eta: Array | float, moves: Array) -> Array:
        """Return the step size after so many moves."""
        return eta * (1.0 + moves) ** -self.decay

    def move(
        self, evaluate: Evaluate, state: State, t: Array, eta: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        noise = normal_like(state, key)
        return _unadjusted(state, t, self.rate(eta, state.moves), noise, self.domain)


SAMPLERS: dict[str, type[AbstractSampler]] = {"ula": ULA, "mala": MALA, "sgld": SGLD}
