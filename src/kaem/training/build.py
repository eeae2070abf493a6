"""From settings to the objects they name."""

import dataclasses
from typing import Any, Protocol

import jax
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from ..baselines import (
    DDPM,
    VAE,
    Denoising,
    Encoder,
    EvidenceBound,
    NeuralEBM,
    NeuralPrior,
)
from ..bases import BASES, Functions
from ..errors import UserError
from ..generators import CNN, KAN, AbstractGenerator
from ..model import KAEM, AbstractModel
from ..posterior import ImportanceSampling, Langevin, Thermodynamic
from ..priors import PRIORS, AbstractPrior, MixturePrior
from ..serialisation import read, read_prior
from .config import Config, GeneratorConfig, OptimiserConfig, PriorConfig

Memory = dict[str, Array]


class Posterior(Protocol):
    """How a model learns: what is maximised on a batch, and what is kept between updates."""

    @property
    def data_parallel(self) -> bool:
        """Whether a batch may be split over devices."""

    @property
    def info_names(self) -> tuple[str, ...]:
        """What `objective` reports of an update."""

    def memory(self, model: Any, examples: int, key: PRNGKeyArray) -> Memory:
        """What is kept between updates; `chains` has a row for each example."""

    def objective(
        self, model: Any, x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> tuple[Array, tuple[dict[str, Array], Memory]]:
        """The value to maximise, what was seen, and what to keep."""

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """What an update that failed needs, if this can tell."""


def build_model(config: Config, data_shape: tuple[int, ...]) -> Any:
    """The untrained model of `config`, for data of shape `data_shape`."""
    prior_key, generator_key = jax.random.split(jax.random.key(config.training.seed))
    try:
        return _model(config, data_shape, prior_key, generator_key)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the settings do not make a model: {error}") from error


def _model(
    config: Config,
    data_shape: tuple[int, ...],
    prior_key: PRNGKeyArray,
    generator_key: PRNGKeyArray,
) -> AbstractModel:
    kind, noise = config.model.kind, config.training.noise
    if config.model.start:
        return _started(config, data_shape)
    if kind == "ddpm":
        names = "channels time_dim timesteps beta_start beta_end sampler sampling_steps"
        return DDPM(data_shape, key=generator_key, **_fields(config.ddpm, names))
    if kind == "kaem":
        prior = _prior(config.prior, prior_key)
        generator = _generator(config.generator, prior.shape[0], data_shape, generator_key)
        return KAEM(prior, generator, noise, config.generator.noise)
    latents = config.prior.coordinates or 2 * config.prior.latents + 1
    generator = _generator(config.generator, latents, data_shape, generator_key)
    if kind == "vae":
        encoder = Encoder(data_shape, latents, key=prior_key, widths=config.vae.widths)
        return VAE(encoder, generator, noise)
    names = "widths steps step_size noise_scale"
    energies = NeuralPrior(latents, key=prior_key, **_fields(config.neural_ebm, names))
    return NeuralEBM(energies, generator, noise, config.generator.noise)


def _fields(section: Any, names: str) -> dict[str, Any]:
    return {name: getattr(section, name) for name in names.split()}


def _started(config: Config, data_shape: tuple[int, ...]) -> AbstractModel:
    """The model that `model.start` names, with the noise of these settings."""
    model = read(str(config.model.start))
    if not isinstance(model, KAEM):
        raise UserError(
            f"{config.model.start} holds a {type(model).__name__}; what training can start from is a "
            "KAEM."
        )
    if model.data_shape != data_shape:
        raise UserError(
            f"{config.model.start} makes data of shape {model.data_shape}, but the data has examples "
            f"of shape {data_shape}; give data of the same shape."
        )
    noise, generator_noise = config.training.noise, config.generator.noise
    return dataclasses.replace(model, noise=noise, generator_noise=generator_noise)


def prior_settings(prior: AbstractPrior) -> dict[str, Any]:
    """What the settings say of a prior that comes from a file."""
    q, p = prior.energies.shape
    names = {cls: name for name, cls in (*PRIORS.items(), *BASES.items())}
    found = {
        "kind": names[type(prior)],
        "latents": p,
        "coordinates": q,
        "reference": prior.reference,
        "domain": [float(prior.domain.min()), float(prior.domain.max())],
        "basis": "closed-form",
        "activation": None,
        "cells": prior.cells,
        "inverse_transform": prior.inverse_transform,
    }
    if isinstance(prior.energies, Functions):
        found |= {"basis": names[type(prior.energies.basis)]}
        found |= {"activation": prior.energies.activation}
    if isinstance(prior, MixturePrior):
        found["proportions"] = "uniform" if prior.logits is None else "learned"
    return found


_FUNCTIONS = "basis grid_size activation amplitude base_mean base_scale basis_scale"


def _prior(p: PriorConfig, key: PRNGKeyArray) -> AbstractPrior:
    if p.start:
        prior = read_prior(p.start)
        found = prior_settings(prior)
        for name in ("kind", "latents", "coordinates", "reference", "basis"):
            if (got := getattr(p, name)) not in (None, found[name]):
                raise UserError(
                    f"prior.{name} is {got!r}, but the prior of {p.start} has {found[name]!r}; a prior "
                    f"that is taken over keeps its form: set prior.{name} to that, or leave it to "
                    "`--prior-from`."
                )
        return prior
    names = f"{_FUNCTIONS} reference domain cells inverse_transform"
    if p.kind == "mixture":
        names += " proportions"
    return PRIORS[p.kind](p.latents, p.coordinates, key=key, **_fields(p, names))


def _generator(
    g: GeneratorConfig, coordinates: int, data_shape: tuple[int, ...], key: PRNGKeyArray
) -> AbstractGenerator:
    if g.kind == "cnn":
        return CNN(coordinates, data_shape, key=key, widths=g.widths, output=g.output)
    return KAN(coordinates, data_shape, key=key, **_fields(g, f"{_FUNCTIONS} depth output"))


def usual_posterior(model: AbstractModel) -> Posterior:
    """How a model of this kind is trained unless one says otherwise."""
    if isinstance(model, VAE):
        return EvidenceBound()
    if isinstance(model, DDPM):
        return Denoising()
    return Langevin() if isinstance(model, NeuralEBM) else ImportanceSampling()


_LEARNS = {  # which of our own posteriors make sense for which model
    KAEM: (ImportanceSampling, Langevin, Thermodynamic),
    NeuralEBM: (Langevin,),
    VAE: (EvidenceBound,),
    DDPM: (Denoising,),
}


def check_posterior(model: AbstractModel, posterior: Posterior) -> None:
    """Refuse a posterior that is meant for another kind of model."""
    ours = tuple(kind for fitting in _LEARNS.values() for kind in fitting)
    for kind, fitting in _LEARNS.items():
        if (
            isinstance(model, kind)
            and isinstance(posterior, ours)
            and not isinstance(posterior, fitting)
        ):
            raise UserError(
                f"a {kind.__name__} is trained with {' or '.join(p.__name__ for p in fitting)}, got "
                f"{type(posterior).__name__}."
            )


def build_posterior(config: Config) -> Posterior:
    p, kind = config.posterior, config.model.kind
    try:
        if kind == "vae":
            return EvidenceBound(config.vae.beta)
        if kind == "ddpm":
            return Denoising()
        if p.kind == "importance":
            return ImportanceSampling(
                p.samples, p.threshold, p.resampler, config.prior.negative_phase
            )
        if p.criterion == "likelihood":
            return Langevin(**_fields(p, "steps step_size kind persistent share"))
        names = "temperatures steps step_size kind persistent schedule p_start p_end cycles ladder"
        return Thermodynamic(**_fields(p, names))
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
                f"{source} has values from {low:.4g} to {high:.4g}, but the model makes values in "
                "[0, 1]; scale the data (images: divide by 255), or, with any model but a DDPM, use "
                "an identity output (`--set generator.output=identity`)."
            )
    if len(x) < batch_size:
        raise UserError(
            f"{source} has {len(x)} of the {batch_size} examples that one batch needs; add data, or "
            f"use smaller batches with `--set training.batch_size={len(x)}`."
        )
