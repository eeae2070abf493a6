"""Timing side by side: variants take turns in one process, and medians are compared."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def interleaved(
    variants: Mapping[str, Callable[[], Any]], repeats: int, warmups: int = 2, least: float = 0.0
) -> dict[str, dict[str, Any]]:
    """Return seconds per call of each variant: median, quartiles and every time, measured in turns.

    Turns share whatever else the machine is doing, so ratios of medians hold where times wander.
    A turn is as many calls as take `least` seconds, and its time their mean: short calls are then
    as well measured as long ones.
    """
    calls = {}
    for name, call in variants.items():
        for _ in range(warmups):
            began = time.perf_counter()
            jax.block_until_ready(call())
        calls[name] = max(1, round(least / (time.perf_counter() - began)))
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, call in variants.items():
            began = time.perf_counter()
            for _ in range(calls[name]):
                jax.block_until_ready(call())
            times[name].append((time.perf_counter() - began) / calls[name])
    return {
        name: {
            "median": float(np.median(t)),
            "lower_quartile": float(np.quantile(t, 0.25)),
            "upper_quartile": float(np.quantile(t, 0.75)),
            "times": t,
        }
        for name, t in times.items()
    }
