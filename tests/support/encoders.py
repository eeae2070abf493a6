"""Settings of a small KAEM with an encoder, for images of 8 x 8 pixels, and of one with a lens and augmentation, too."""

from kaem.settings import merge

ENCODED = {
    "prior": {
        "kind": "mixture",
        "latents": 1,
        "coordinates": 4,
        "basis": "bspline",
        "grid_size": 8,
        "activation": "none",
        "domain": [-6.0, 6.0],
        "cells": 64,
    },
    "generator": {"kind": "cnn", "widths": [4]},
    "encoder": {"kind": "convolutional", "widths": [4, 4], "mixing": True},
    "learner": {"kind": "encoder"},
    "optimiser": {"average": 0.9, "decay": "cosine", "warmup": 2, "weight_decay": 0.01},
    "upkeep": {"alignments": 3, "aligned_examples": 48},
    "grid": {"prior": False, "generator": False},
}
SPECTRAL = merge(
    ENCODED,
    {
        "lens": {"kind": "spectral"},
        "upkeep": {"focusings": 2},
        "augmentation": {"shift": 1, "mirror": True},
    },
)
