r"""Which latents explain which example: one draw from $p(z \mid x)$ for each $x$.

A chain starts at one of $N$ prior draws $z_s$ that all examples share, chosen with probability
$\propto p(x\mid z_s)$, and goes on by MALA steps. Where the latents are few the choice alone is nearly
a posterior draw, and the steps polish it; where they are many, the steps find what no prior draw
could. The first half of the steps tunes their size, example by example; then it is frozen.

A neural prior $e^{f(z)}\mathcal{N}(z; 0, I)/Z$ has no exact draws: its $z_s$ are of the normal, chosen
with $p(x\mid z_s)\,e^{f(z_s)}$. A VAE explains an example by a draw from its encoder, without a chain.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..baselines import VAE, NeuralPrior
from ..baselines.vae import drawn
from ..errors import UserError
from ..metrics.annealing import posterior_chains, posterior_path
from ..model import AbstractModel, LatentModel

_CHUNK = 128  # proposals decoded at once


class Inference(NamedTuple):
    """A posterior draw for each example, and how often its chain moved once tuned (NaN: no chain)."""

    latents: Float[np.ndarray, "n ..."]
    acceptance: Float[np.ndarray, " n"]


def explainable(model: AbstractModel, x: Any) -> tuple[LatentModel, Float[Array, "n ..."]]:
    """The model, and the examples as floats, or what is wrong with either."""
    if not isinstance(model, LatentModel):
        raise UserError(
            f"a {type(model).__name__} has no latents that could explain an example; give a KAEM, a "
            "VAE or a neural energy model."
        )
    return model, model.checked_data(x)


def infer(
    model: AbstractModel,
    x: Float[Array | np.ndarray, "n ..."],
    key: PRNGKeyArray,
    *,
    proposals: int = 1024,
    steps: int = 100,
    batch: int = 64,
) -> Inference:
    """One posterior draw for each example; see the module for how.

    **Arguments:** `x` are data as the model makes them, or bytes; `proposals` is the number of
    shared prior draws, `steps` that of each chain, `batch` the number of examples treated at once.
    """
    if proposals < 1 or steps < 2 or batch < 1:
        raise ValueError(
            "inference needs at least 1 proposal, 2 steps and a batch of 1, got "
            f"{proposals}, {steps} and {batch}."
        )
    model, x = explainable(model, x)
    model = model.prepared()
    propose_key, key = jax.random.split(key)
    shared = _proposed(model, propose_key, 1 if isinstance(model, VAE) else proposals)
    size, parts = min(batch, len(x)), []
    for start in range(0, len(x), size):
        # A last batch of full size compiles nothing new.
        rows = np.arange(start, start + size) % len(x)
        at = jax.random.fold_in(key, start)
        if isinstance(model, VAE):
            found = _encoded(model, x[rows], at)
        else:
            found = _chained(model, x[rows], shared, at, steps)
        parts.append([np.asarray(array)[: len(x) - start] for array in found])
    return Inference(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class _Proposals(NamedTuple):
    """Latents to start from, what they decode to, and the part of $l$ that is no likelihood."""

    z: Float[Array, "N ..."]
    means: Float[Array, "N ..."]
    tilt: Float[Array, " N"]


@eqx.filter_jit
def _proposed(model: LatentModel, key: PRNGKeyArray, number: int) -> _Proposals:
    prior = model.prior
    neural = isinstance(prior, NeuralPrior)
    z = prior.normal(key, number) if neural else prior.sample(key, number)
    decode = model.generator.decoder()
    means = jax.lax.map(lambda z: decode(z[None])[0], z, batch_size=_CHUNK)
    return _Proposals(z, means, prior.tilt(z) if neural else jnp.zeros(number))


@eqx.filter_jit
def _chained(
    model: LatentModel, x: Float[Array, "B ..."], shared: _Proposals, key: PRNGKeyArray, steps: int
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
def _encoded(model: VAE, x: Float[Array, "B ..."], key: PRNGKeyArray) -> tuple[Array, Array]:
    return drawn(*model.encoder(x), key), jnp.full(len(x), jnp.nan)
