r"""Population sampling of all power posteriors $p(x\mid z)^{t_k}p(z)$, with exchanges between them.

Deterministic even-odd swaps (Syed et al., 2021): pairs (0,1), (2,3), ... are proposed at even
steps, (1,2), (3,4), ... at odd ones, and every sample decides for itself (eq. global-swap). At
$t_0 = 0$ the power posterior is the prior, which needs no chain: it is drawn exactly and afresh
whenever its pair is due.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..parallel import of_batch
from .kernels import AbstractSampler, Evaluate, State, per_chain


def swap(
    key: PRNGKeyArray,
    levels: Any,
    log_likelihood: Float[Array, "L B"],
    t: Float[Array, " L"],
    parity: Int[Array, ""],
) -> tuple[Any, Bool[Array, "L-1 B"]]:
    """Propose to exchange neighbours k, k + 1 with k of the given parity; leaves have axes [L, B, ...].

    Returns the exchanged tree, and which pairs exchanged for which samples.
    """
    pairs = len(t) - 1
    log_ratio = (t[1:] - t[:-1])[:, None] * (log_likelihood[:-1] - log_likelihood[1:])
    due = (jnp.arange(pairs) % 2 == parity)[:, None]
    u = of_batch(lambda shape: jax.random.uniform(key, shape), log_ratio.shape, axis=1)
    accepted = due & (jnp.log(u) < log_ratio)
    none = jnp.zeros_like(accepted[:1])
    from_above = jnp.concatenate([accepted, none])
    from_below = jnp.concatenate([none, accepted])

    def exchange(leaf: Array) -> Array:
        above, below = jnp.roll(leaf, -1, axis=0), jnp.roll(leaf, 1, axis=0)
        kept = jnp.where(per_chain(from_below, leaf), below, leaf)
        return jnp.where(per_chain(from_above, leaf), above, kept)

    return jax.tree.map(exchange, levels), accepted


class PopulationState(NamedTuple):
    """Chains at $t_1 \\ldots t_N$, and which of them came from the prior since they were last at the top."""

    chains: State  # z has axes [N, B, *event]
    fresh: Bool[Array, "N B"]
    moves: Int[Array, ""]


class PopulationInfo(NamedTuple):
    """What one step did."""

    acceptance: Float[Array, "*n"]
    drift: Float[Array, ""]
    astray: Float[Array, ""]
    swapped: Float[Array, " N"]  # share of samples that exchanged, pair by pair; 0 if not due
    trips: Float[Array, ""]  # samples that arrived at t = 1 from the prior, per example


class Population(eqx.Module):
    """A local sampler at every temperature, and exchanges between neighbours."""

    local: AbstractSampler

    def init(
        self, evaluate: Evaluate, z: Float[Array, "N B ..."], parity: Array | int = 0
    ) -> PopulationState:
        """Return chains that start at `z` [N, B, ...]; `parity` says which pairs are due first, even (0) or odd (1)."""
        fresh = jnp.zeros(z.shape[:2], bool)
        return PopulationState(self.local.init(evaluate, z), fresh, jnp.asarray(parity, jnp.int32))

    def step(
        self,
        evaluate: Evaluate,
        state: PopulationState,
        t: Float[Array, " N+1"],
        eta: Array | float,
        key: PRNGKeyArray,
        draw: Callable[[PRNGKeyArray], Float[Array, "B ..."]],
    ) -> tuple[PopulationState, PopulationInfo]:
        """Evaluate, exchange, move by `eta`. `draw` makes exact prior samples, the population's t = 0."""
        look_key, draw_key, swap_key, move_key = jax.random.split(key, 4)
        chains = self.local.look(evaluate, state.chains, look_key)
        parity = state.moves % 2

        def prior(_: Any) -> Any:
            z = draw(draw_key)
            return z, evaluate(z)

        def unused(_: Any) -> Any:  # at odd steps t = 0 is not due: any values of the right shape
            return jax.tree.map(lambda leaf: leaf[0], (chains.z, chains.here))

        bottom = jax.lax.cond(parity == 0, prior, unused, None)
        levels = jax.tree.map(
            lambda first, rest: jnp.concatenate([first[None], rest]),
            (*bottom, jnp.ones_like(state.fresh[0])),
            (chains.z, chains.here, state.fresh),
        )
        (z, here, fresh), accepted = swap(swap_key, levels, levels[1].log_likelihood, t, parity)
        arrived = fresh[-1] & accepted[-1]
        fresh = fresh[1:].at[-1].set(False)
        above = jax.tree.map(lambda leaf: leaf[1:], here)
        rest = State(z[1:], above, chains.moves)
        moved, local = self.local.move(evaluate, rest, t[1:, None], jnp.asarray(eta), move_key)
        info = PopulationInfo(*local, jnp.mean(accepted, axis=1), jnp.mean(arrived))
        return PopulationState(moved, fresh, state.moves + 1), info
