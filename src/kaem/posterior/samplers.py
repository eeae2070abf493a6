r"""Markov chains on latent posteriors: ULA, MALA and SGLD, sharing one shape.

A sampler has `init(evaluate, z) -> State` and `step(evaluate, state, t, key) -> (State, Info)`,
where `evaluate(z)` gives log-likelihood, log-prior and their gradients, and $t$ is the
temperature of the power posterior $p(x\mid z)^t\,p(z)$. A step is `look`, which evaluates where
the chain stands, and `move`; tempering exchanges states between the two.

All batches are leading axes; `t` broadcasts against them.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Evaluation(NamedTuple):
    """What is known about latents z: one number, or one gradient, for each chain."""

    log_likelihood: Float[Array, "*n"]
    likelihood_score: Float[Array, "*n event"]
    log_prior: Float[Array, "*n"]
    prior_score: Float[Array, "*n event"]


Domain = tuple[Float[Array, "*event"], Float[Array, "*event"]]
Evaluate = Callable[[Float[Array, "*n event"]], Evaluation]


class State(NamedTuple):
    """Where chains stand, what is known there (None: not evaluated yet), and how often they moved."""

    z: Float[Array, "*n event"]
    here: Evaluation | None
    moves: Int[Array, ""]


class Info(NamedTuple):
    """What one step did, averaged over chains."""

    acceptance: Float[Array, ""]
    drift: Float[Array, ""]  # root mean square of the deterministic part of the move
    astray: Float[Array, ""]  # share of latents that drifted through half of the domain at once


def per_chain(value: Array, like: Array) -> Array:
    """`value` with trailing axes added until it broadcasts against `like`."""
    return jnp.asarray(value).reshape(jnp.shape(value) + (1,) * (like.ndim - jnp.ndim(value)))


def _total(x: Array, batch: int) -> Array:
    return jnp.sum(x, axis=tuple(range(batch, x.ndim)))


def score(state: State, t: Array) -> Array:
    r"""$t\,\nabla\log p(x\mid z) + \nabla\log p(z)$."""
    here = state.here
    if here is None:
        raise ValueError("the state has not been evaluated; call `look` first.")
    return per_chain(t, state.z) * here.likelihood_score + here.prior_score


def reflected(z: Float[Array, "*n event"], domain: Domain | None) -> Float[Array, "*n event"]:
    """`z` as it is within the domain, and mirrored at the border as often as it takes beyond it."""
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

    step_size: eqx.AbstractVar[float]
    domain: eqx.AbstractVar[Domain | None]

    def init(self, evaluate: Evaluate, z: Array) -> State:
        """Chains that start at `z`."""
        del evaluate
        return State(z, None, jnp.int32(0))

    def look(self, evaluate: Evaluate, state: State, key: PRNGKeyArray) -> State:
        """The state with its evaluation."""
        del key
        return state if state.here is not None else state._replace(here=evaluate(state.z))

    @abstractmethod
    def move(
        self, evaluate: Evaluate, state: State, t: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        """One local move of an evaluated state."""

    def step(
        self, evaluate: Evaluate, state: State, t: Array | float, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        """Evaluate, then move."""
        look_key, move_key = jax.random.split(key)
        state = self.look(evaluate, state, look_key)
        return self.move(evaluate, state, jnp.asarray(t), move_key)


class ULA(AbstractSampler):
    r"""Unadjusted Langevin: $z + \eta\nabla\log\pi + \sqrt{2\eta}\,\xi$ (eq. ula); bias $O(\eta)$."""

    step_size: float = eqx.field(static=True, default=0.01)
    domain: Domain | None = None

    def move(
        self, evaluate: Evaluate, state: State, t: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        z = state.z
        drift = self.step_size * score(state, t)
        noise = (2 * self.step_size) ** 0.5 * jax.random.normal(key, z.shape)
        z = z + drift + noise
        info = Info(jnp.ones(()), jnp.sqrt(jnp.mean(drift**2)), _astray(drift, self.domain))
        return State(reflected(z, self.domain), None, state.moves + 1), info


class MALA(AbstractSampler):
    """Langevin proposals accepted or rejected by Metropolis: no bias from the step size."""

    step_size: float = eqx.field(static=True, default=0.01)
    domain: Domain | None = None

    def init(self, evaluate: Evaluate, z: Array) -> State:
        return State(z, evaluate(z), jnp.int32(0))

    def move(
        self, evaluate: Evaluate, state: State, t: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        here, eta = state.here, self.step_size
        assert here is not None
        batch = here.log_likelihood.ndim
        noise_key, accept_key = jax.random.split(key)
        drift = eta * score(state, t)
        proposal = state.z + drift + (2 * eta) ** 0.5 * jax.random.normal(noise_key, state.z.shape)
        there = State(proposal, evaluate(proposal), state.moves + 1)

        def log_target(at: Evaluation) -> Array:
            return t * at.log_likelihood + at.log_prior

        def log_move(origin: State, destination: Array) -> Array:
            gap = destination - origin.z - eta * score(origin, t)
            return -_total(gap**2, batch) / (4 * eta)

        log_ratio = log_target(there.here) - log_target(here)  # type: ignore[arg-type]
        log_ratio += log_move(there, state.z) - log_move(state, proposal)
        accept = jnp.log(jax.random.uniform(accept_key, log_ratio.shape)) < log_ratio

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(per_chain(accept, new), new, old)

        kept = jax.tree.map(choose, there._replace(moves=accept), state._replace(moves=accept))
        info = Info(jnp.mean(accept), jnp.sqrt(jnp.mean(drift**2)), jnp.zeros(()))
        return kept._replace(moves=state.moves + 1), info


class SGLD(AbstractSampler):
    r"""Stochastic-gradient Langevin (Welling and Teh, 2011): decreasing steps, noisy gradients.

    Step $k$ is $\eta\,(1 + k)^{-\gamma}$. With `share` below one, each step sees a random share of
    the observed dimensions; `evaluate` must then be able to take a `key` and a `share`.
    """

    step_size: float = eqx.field(static=True, default=0.01)
    decay: float = eqx.field(static=True, default=0.33)  # gamma
    share: float = eqx.field(static=True, default=1.0)
    domain: Domain | None = None

    def look(self, evaluate: Evaluate, state: State, key: PRNGKeyArray) -> State:
        if self.share == 1 or state.here is not None:
            return super().look(evaluate, state, key)
        return state._replace(here=evaluate(state.z, key=key, share=self.share))  # type: ignore[call-arg]

    def rate(self, moves: Array) -> Array:
        """The step size after so many moves."""
        return self.step_size * (1.0 + moves) ** -self.decay

    def move(
        self, evaluate: Evaluate, state: State, t: Array, key: PRNGKeyArray
    ) -> tuple[State, Info]:
        eta = self.rate(state.moves)
        drift = eta * score(state, t)
        noise = jnp.sqrt(2 * eta) * jax.random.normal(key, state.z.shape)
        z = state.z + drift + noise
        info = Info(jnp.ones(()), jnp.sqrt(jnp.mean(drift**2)), _astray(drift, self.domain))
        return State(reflected(z, self.domain), None, state.moves + 1), info


SAMPLERS: dict[str, type[AbstractSampler]] = {"ula": ULA, "mala": MALA, "sgld": SGLD}
