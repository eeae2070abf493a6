"""Tiny plans of training with chains, and images for them."""

import numpy as np

from kaem.settings import Settings, merge

SMALL = {
    "model": {"noise": 0.3, "generator_noise": 0.0},
    "prior": {
        "kind": "mixture",
        "latents": 3,
        "basis": "morlet",
        "activation": "none",
        "domain": [-12.0, 12.0],
        "cells": 64,
    },
    "generator": {"kind": "cnn", "widths": [8]},
    "learner": {"kind": "langevin", "sampler": "ula", "steps": 3},
    "upkeep": {"tolerance": 1e-2},
    "optimiser": {"generator_rate": 3e-3, "prior_rate": 1e-3},
    "training": {
        "steps": 24,
        "batch_size": 8,
        "log_every": 4,
        "checkpoint_every": 8,
        "sample_every": 24,
    },
}
THERMO = {"kind": "thermodynamic", "temperatures": 3, "schedule": "balanced"}


def small(learner=None, training=None, **sections):
    """Return settings of a mixture and a CNN that learn from chains."""
    values = merge(SMALL, {"learner": learner or {}, "training": training or {}})
    return Settings.from_dict(merge(values, sections))


def coloured(n=64):
    """Coloured blobs: where they are and what colour they have are the factors."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:8, :8]
    centres, colours = rng.uniform(2, 6, (n, 2, 1, 1)), rng.uniform(0.2, 1, (n, 1, 1, 3))
    blob = np.exp(-((x - centres[:, 0]) ** 2 + (y - centres[:, 1]) ** 2) / 4)
    return (255 * blob[..., None] * colours).astype(np.uint8)
