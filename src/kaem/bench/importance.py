"""One importance-sampled update of the `mnist` preset against a plain autoencoder's.

The autoencoder has the same KAN generator, batch, optimiser and data type, and an encoder of
one hidden layer as wide as the generator's; it does what any decoder-based model must do at the
least, so the ratio is the price of the prior, the proposals and the weights.
"""

import argparse
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..data import load
from ..model import as_float
from ..training.build import build_model, build_optimiser, build_posterior
from ..training.config import Config, read_preset
from ..training.loop import initial_state, parameters, updates, with_parameters
from .measure import interleaved


def run(options: argparse.Namespace) -> dict[str, Any]:
    config = Config.from_dict(read_preset("mnist"))
    digits, key = load("mnist5k"), jax.random.key(0)
    x = as_float(jnp.asarray(digits[: config.training.batch_size]))
    posterior = build_posterior(config)
    # What an update costs depends on how many proposals carry weight: measure under way.
    short = replace(config, training=replace(config.training, steps=100))
    state = initial_state(build_model(config, x.shape[1:]), posterior, short, len(digits))
    for boundary in updates(state, digits, posterior, short):
        state = boundary.state
    model = state.model
    variants = {
        "importance": _importance(model, posterior, config, x, key),
        "autoencoder": _autoencoder(model.generator, model.prior.shape[0], x, key),
    }
    details = interleaved(variants, options.repeats)
    medians = {name: entry["median"] for name, entry in details.items()}
    return {
        "benchmark": "importance",
        "results": {
            "importance_over_autoencoder": medians["importance"] / medians["autoencoder"],
            "updates_per_second": 1 / medians["importance"],
        },
        "details": details,
    }


def _importance(model: Any, posterior: Any, config: Config, x: Any, key: Any) -> Any:
    transform = build_optimiser(config.optimiser, config.training.steps)
    names = list(parameters(model))

    def loss(params: Any) -> Any:
        now = with_parameters(model, {name: params[name] for name in names})
        return -posterior.expected_log_joint(now, x, key)[0]

    return _updater(loss, transform, parameters(model))


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
    """A call that takes one Adam step from where the last one ended, buffers donated."""

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
    lines = ["| update | median ms | quartiles |", "|---|---|---|"]
    for name, entry in result["details"].items():
        low, high = entry["lower_quartile"], entry["upper_quartile"]
        lines.append(
            f"| {name} | {entry['median'] * 1e3:.1f} | {low * 1e3:.1f} to {high * 1e3:.1f} |"
        )
    ratio = result["results"]["importance_over_autoencoder"]
    return "\n".join([*lines, "", f"importance / autoencoder = {ratio:.2f}"])
