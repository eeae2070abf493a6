"""Tiny plans of training, data for them, and the loop without a folder."""

import jax
import numpy as np

from kaem.settings import Settings, merge
from kaem.training.loop import updates
from kaem.training.plan import initial_state

TINY = {
    "data": {"name": "mnist5k", "limit": 200},
    "prior": {"latents": 1, "grid_size": 5, "cells": 16},
    "generator": {"depth": 1, "grid_size": 5},
    "learner": {"samples": 16},
    "grid": {"interval": 7, "samples": 20},
    "training": {
        "steps": 30,
        "batch_size": 16,
        "log_every": 5,
        "checkpoint_every": 10,
        "sample_every": 10,
    },
}


def tiny(sections=None, **training):
    """Return settings of a model that compiles and trains in a second or two."""
    return Settings.from_dict(merge(merge(TINY, {"training": training}), sections or {}))


def images(n=200):
    """Blobs whose position is the only factor of variation."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    centres = rng.uniform(8, 20, (n, 1, 1))
    return (255 * np.exp(-((x - centres) ** 2 + (y - 14) ** 2) / 20)).astype(np.uint8)[..., None]


def fresh(settings, x):
    """Return the state before the first update."""
    return initial_state(settings.model(x.shape[1:]), settings.plan(), len(x))


def run_to_end(state, settings, x):
    """Return the last state, and the logged steps with their metrics."""
    history = []
    for boundary in updates(state, x, settings.plan()):
        state = boundary.state
        if boundary.metrics:
            history.append((state.step, boundary.metrics))
    return state, history


def same(a, b):
    """Whether two trees hold the same bits."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)
