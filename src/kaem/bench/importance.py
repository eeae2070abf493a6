"""One importance-sampled update of the `mnist-paper` preset against a plain autoencoder's.

The autoencoder has the same KAN generator, batch, optimiser and data type, and an encoder of
one hidden layer as wide as the generator's; it does what any decoder-based model must do at the
least, so the ratio is the price of the prior, the proposals and the weights.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..data import load
from ..measuring import interleaved
from ..models import as_float
from ..training import Plan
from ..training.parameters import parameters, with_parameters, without
from .training import after, preset, table


def run(repeats: int = 20) -> dict[str, Any]:
    """Time both updates, `repeats` times in turns."""
    plan, key = preset("mnist-paper").plan(), jax.random.key(0)
    x = as_float(jnp.asarray(load("mnist5k")[: plan.batch_size]))
    # What an update costs depends on how many proposals carry weight: measure under way.
    model = after("mnist-paper", 100)
    variants = {
        "importance": _importance(model, plan, x, key),
        "autoencoder": _autoencoder(model.generator, model.prior.shape[0], x, key),
    }
    details = interleaved(variants, repeats)
    importance, autoencoder = (details[name]["median"] for name in variants)
    results = {
        "importance_over_autoencoder": importance / autoencoder,
        "updates_per_second": 1 / importance,
    }
    return {"results": results, "details": details}


def _importance(model: Any, plan: Plan, x: Any, key: Any) -> Any:
    trained, learner = parameters(model), plan.learner
    rest = without(model, trained)

    def loss(params: Any) -> Any:
        return -learner.objective(with_parameters(rest, params), x, key, {}, 0.0)[0]

    return _updater(loss, plan.transform, trained)


def _autoencoder(generator: Any, coordinates: int, x: Any, key: Any) -> Any:
    flat = x.reshape(len(x), -1)
    encoder = eqx.nn.MLP(flat.shape[1], coordinates, 2 * coordinates + 1, 1, key=key)
    params, static = eqx.partition((encoder, generator), eqx.is_inexact_array)

    def loss(params: Any) -> Any:
        encoder, generator = eqx.combine(params, static)
        codes = jax.vmap(encoder)(flat)
        return jnp.mean(jnp.sum((jax.vmap(generator)(codes[..., None]) - x) ** 2, axis=(1, 2, 3)))

    return _updater(loss, optax.adam(1e-3), params)


def _updater(loss: Any, transform: optax.GradientTransformation, params: Any) -> Any:
    """Return a call that takes one Adam step from where the last one ended, buffers donated."""

    def update(params: Any, state: Any) -> Any:
        grads = jax.grad(loss)(params)
        changes, state = transform.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    compiled = jax.jit(update, donate_argnums=(0, 1))
    held = [(jax.tree.map(jnp.array, params), transform.init(params))]

    def call() -> Any:
        held[0] = compiled(*held[0])
        return held[0]

    return call


def render(result: dict[str, Any]) -> str:
    """Return a table of times, and their ratio."""
    ratio = result["results"]["importance_over_autoencoder"]
    return f"{table(result['details'])}\n\nimportance / autoencoder = {ratio:.2f}"
