"""Distances between two sets of samples, by features of theirs."""

from ...lazy import submodules

submodules(__name__)
