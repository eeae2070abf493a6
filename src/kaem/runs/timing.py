"""Calls to be timed: one update, exactly as training makes it, and one draw of samples."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..settings import Settings
from ..training.dispatch import Dispatch
from ..training.plan import initial_state


def updater(settings: Settings, shape: tuple[int, ...], count: int = 1) -> Callable[[], Any]:
    """Return a call that makes `count` updates on random bytes of a shape, from where the last one ended."""
    plan = replace(settings.plan(), log_every=count, marks=())
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (max(1000, plan.batch_size), *shape), dtype=np.uint8)
    dispatch = Dispatch(plan, data)
    held = [initial_state(settings.model(shape), plan, len(data))]

    def call() -> Any:
        held[0] = dispatch(held[0], held[0].step + count)
        return held[0].optimiser

    return call


def sampler(model: Any, n: int) -> Callable[[], Any]:
    """Return a call that draws `n` samples, as `model.sample` does, with a new key each time."""
    arrays, static = eqx.partition(model, eqx.is_array)
    draw = jax.jit(lambda arrays, key: eqx.combine(arrays, static).sample(key, n))
    keys = cycle(list(jax.random.split(jax.random.key(0), 100)))
    return lambda: draw(arrays, next(keys))
