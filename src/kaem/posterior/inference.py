r"""Which latents explain which example: one draw from $p(z \mid x)$ for each $x$.

A chain starts at one of $N$ prior draws $z_s$ that all examples share, chosen with probability
$\propto p(x\mid z_s)$, and goes on by MALA steps. Where the latents are few the choice alone is nearly
a posterior draw, and the steps polish it; where they are many, the steps find what no prior draw
could. The first half of the steps tunes their size, example by example; then it is frozen.

A neural prior $e^{f(z)}\mathcal{N}(z; 0, I)/Z$ has no exact draws: its $z_s$ are of the normal, chosen
with $p(x\mid z_s)\,e^{f(z_s)}$. A model with an encoder explains an example by a draw from that,
without a chain.
"""

from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .annealing import posterior_chains, posterior_path

if TYPE_CHECKING:
    from ..models import LatentModel

_CHUNK = 128  # proposals decoded at once


class Inference(NamedTuple):
    """A posterior draw for each example, and how often its chain moved once tuned (NaN: no chain)."""

    latents: Float[np.ndarray, "n ..."]
    acceptance: Float[np.ndarray, " n"]


def infer(
    model: "LatentModel", x: Array, key: PRNGKeyArray, proposals: int, steps: int, batch: int
) -> Inference:
    """Return one posterior draw for each example; see the module for how."""
    if proposals < 1 or steps < 2 or batch < 1:
        raise ValueError(
            "inference needs at least 1 proposal, 2 steps and a batch of 1, got "
            f"{proposals}, {steps} and {batch}."
        )
    model = model.prepared()
    propose_key, key = jax.random.split(key)
    size, parts, shared = min(batch, len(x)), [], None
    for start in range(0, len(x), size):
        # A last batch of full size compiles nothing new.
        rows = np.arange(start, start + size) % len(x)
        at = jax.random.fold_in(key, start)
        found = _encoded(model, x[rows], at)
        if found is None:
            shared = shared or _proposed(model, propose_key, proposals)
            found = _chained(model, x[rows], shared, at, steps)
        parts.append([np.asarray(array)[: len(x) - start] for array in found])
    return Inference(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class _Proposals(NamedTuple):
    """Latents to start from, what they decode to, and the part of $l$ that is no likelihood."""

    z: Float[Array, "N ..."]
    means: Float[Array, "N ..."]
    tilt: Float[Array, " N"]


@eqx.filter_jit
def _proposed(model: "LatentModel", key: PRNGKeyArray, number: int) -> _Proposals:
    start = model.prior.start()
    z = start.draw(key, number)
    decode = model.generator.decoder()
    means = jax.lax.map(lambda z: decode(z[None])[0], z, batch_size=_CHUNK)
    return _Proposals(z, means, jnp.zeros(number) if start.tilt is None else start.tilt(z))


@eqx.filter_jit
def _chained(
    model: "LatentModel", x: Array, shared: _Proposals, key: PRNGKeyArray, steps: int
) -> tuple[Array, Array]:
    start_key, chain_key = jax.random.split(key)
    log_w = model.log_likelihood_matrix(x, shared.means) + shared.tilt
    chosen = shared.z[jax.random.categorical(start_key, log_w)]
    path = posterior_path(model, x)._replace(draw=lambda key, n: chosen)
    z, acceptance = posterior_chains(
        path, 1, len(x), chain_key, burn_in=steps // 2, steps=steps - steps // 2
    )
    return z[-1, 0], acceptance


@eqx.filter_jit
def _encoded(
    model: "LatentModel", x: Float[Array, "B ..."], key: PRNGKeyArray
) -> tuple[Array, Array] | None:
    guess = model.encoded(x)
    return None if guess is None else (guess.draw(key), jnp.full(len(x), jnp.nan))
