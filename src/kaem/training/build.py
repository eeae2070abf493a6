"""From settings to the objects they name."""

from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from ..errors import UserError
from ..generators import CNN, KAN, AbstractGenerator
from ..model import KAEM
from ..posterior import ImportanceSampling, Langevin, Thermodynamic
from ..priors import PRIORS, AbstractPrior
from .config import Config, GeneratorConfig, OptimiserConfig, PriorConfig

Posterior = ImportanceSampling | Langevin | Thermodynamic


def build_model(config: Config, data_shape: tuple[int, ...]) -> KAEM:
    """The untrained model of `config`, for data of shape `data_shape`."""
    prior_key, generator_key = jax.random.split(jax.random.key(config.training.seed))
    try:
        prior = _prior(config.prior, prior_key)
        generator = _generator(config.generator, prior.shape[0], data_shape, generator_key)
        return KAEM(prior, generator, config.training.noise, config.generator.noise)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the settings do not make a model: {error}") from error


def _initialisation(c: PriorConfig | GeneratorConfig) -> dict[str, Any]:
    names = ("basis", "grid_size", "activation", "amplitude", "base_mean", "base_scale")
    return {name: getattr(c, name) for name in (*names, "basis_scale")}


def _prior(p: PriorConfig, key: PRNGKeyArray) -> AbstractPrior:
    options: dict[str, Any] = _initialisation(p) | {
        "reference": p.reference,
        "domain": p.domain,
        "cells": p.cells,
        "inverse_transform": p.inverse_transform,
    }
    if p.kind == "mixture":
        options["proportions"] = p.proportions
    return PRIORS[p.kind](p.latents, p.coordinates, key=key, **options)


def _generator(
    g: GeneratorConfig, coordinates: int, data_shape: tuple[int, ...], key: PRNGKeyArray
) -> AbstractGenerator:
    if g.kind == "cnn":
        return CNN(coordinates, data_shape, key=key, widths=g.widths, output=g.output)
    return KAN(
        coordinates, data_shape, key=key, depth=g.depth, output=g.output, **_initialisation(g)
    )


def build_posterior(config: Config) -> Posterior:
    p = config.posterior
    try:
        if p.kind == "importance":
            return ImportanceSampling(
                p.samples, p.threshold, p.resampler, config.prior.negative_phase
            )
        if p.criterion == "likelihood":
            return Langevin(p.steps, p.step_size, p.kind, p.persistent, p.share)
        return Thermodynamic(
            p.temperatures,
            p.steps,
            p.step_size,
            p.kind,
            p.persistent,
            p.schedule,  # type: ignore[arg-type]
            p.p_start,
            p.p_end,
            p.cycles,
            p.ladder,
        )
    except ValueError as error:
        raise UserError(f"the settings do not make a posterior: {error}") from error


def build_optimiser(config: OptimiserConfig, steps: int) -> optax.GradientTransformation:
    """Adam with its own learning rate for the prior and for the generator."""

    def adam(rate: float) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(rate, steps, 0.05)
        b1, b2 = config.betas
        return optax.adam(schedule if config.decay == "cosine" else rate, b1=b1, b2=b2)

    def part(parameters: dict[str, Any]) -> dict[str, str]:
        return {name: "prior" if name.startswith(".prior") else "generator" for name in parameters}

    rates = {"prior": adam(config.prior_rate), "generator": adam(config.generator_rate)}
    return optax.multi_transform(rates, part)


def check_data(
    x: np.ndarray,
    source: str,
    *,
    batch_size: int,
    output: str,
    shape: tuple[int, ...] | None = None,
) -> None:
    """That a model with this `output` (and data `shape`, if it has one yet) can be trained on `x`."""
    if shape is not None and x.shape[1:] != shape:
        raise UserError(
            f"the model generates data of shape {shape}, but {source} holds examples of shape "
            f"{x.shape[1:]}; build the generator for that shape."
        )
    if output == "sigmoid" and x.dtype != np.uint8:
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > 1:
            raise UserError(
                f"{source} has values from {low:.4g} to {high:.4g}, but a sigmoid generator makes "
                "values in [0, 1]; scale the data (images: divide by 255), or use an identity "
                "output (`--set generator.output=identity`)."
            )
    if len(x) < batch_size:
        raise UserError(
            f"{source} has {len(x)} of the {batch_size} examples that one batch needs; add data, or "
            f"use smaller batches with `--set training.batch_size={len(x)}`."
        )
