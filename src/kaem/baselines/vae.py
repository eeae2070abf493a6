r"""The variational autoencoder: a standard normal prior and an encoder $q(z\mid x)$.

What is maximised is $\mathbb{E}_q[\log p(x\mid z)] - \beta\,\mathrm{KL}(q(z\mid x)\,\|\,p(z))$, the
evidence lower bound where $\beta = 1$.
"""

from itertools import pairwise
from math import prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..generators import AbstractGenerator
from ..initialise import as_array, host_rng
from ..model import LatentModel, as_float
from .convolution import downsample4x4


class NormalPrior(eqx.Module):
    """Independent standard normals."""

    shape: tuple[int, ...] = eqx.field(static=True)

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
        return jax.random.normal(key, (n, *self.shape))

    def log_prob(self, z: Float[Array, "... Q"]) -> Float[Array, "..."]:
        return jnp.sum(jax.scipy.stats.norm.logpdf(z), axis=-1)


class Encoder(eqx.Module):
    """Data to the mean and log-variance of its latents.

    Images go through 4x4 stride-2 convolutions, anything else through dense layers; both with
    LeakyReLU, then one dense layer.
    """

    weights: tuple[Float[Array, "..."], ...]  # [4, 4, I, O] or [I, O]
    biases: tuple[Float[Array, " O"], ...]
    head: Float[Array, "D 2Q"]
    head_bias: Float[Array, " 2Q"]
    slope: float = eqx.field(static=True)

    def __init__(
        self,
        data_shape: tuple[int, ...],
        latents: int,
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (16, 32, 64, 128),
        slope: float = 0.01,
    ) -> None:
        """`widths` are the channels of the hidden layers."""
        if widths and min(widths) < 1:
            raise ValueError(f"an encoder needs positive widths, got {widths}.")
        images, factor = len(data_shape) == 3, 2 ** len(widths)
        if images and (data_shape[0] % factor or data_shape[1] % factor):
            raise ValueError(
                f"an encoder with {len(widths)} widths halves its image as often, so height and "
                f"width must be divisible by {factor}, got {tuple(data_shape)}; change vae.widths, "
                "or resize the images with data.size."
            )
        rng = host_rng(key)
        gain = (2 / (1 + slope**2)) ** 0.5
        first = data_shape[-1] if images else prod(data_shape)
        taps = (4, 4) if images else ()
        self.weights = tuple(
            as_array(rng.normal(0, gain / (prod(taps) * i) ** 0.5, (*taps, i, o)))
            for i, o in pairwise((first, *widths))
        )
        self.biases = tuple(as_array(np.zeros(o)) for o in widths)
        pixels = (data_shape[0] // factor) * (data_shape[1] // factor) if images else 1
        flat = pixels * (widths[-1] if widths else first)
        self.head = as_array(rng.normal(0, flat**-0.5, (flat, 2 * latents)))
        self.head_bias = as_array(np.zeros(2 * latents))
        self.slope = slope

    def __call__(self, x: Float[Array, "n ..."]) -> tuple[Float[Array, "n Q"], Float[Array, "n Q"]]:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.ndim == 4:
                x = downsample4x4(x, weight) + bias
            else:
                x = x.reshape(len(x), -1) @ weight + bias
            x = jnp.where(x > 0, x, self.slope * x)
        mean, log_variance = jnp.split(
            x.reshape(len(x), -1) @ self.head + self.head_bias, 2, axis=1
        )
        return mean, log_variance


class VAE(LatentModel):
    """A variational autoencoder: `NormalPrior`, a generator, an `Encoder` and observation noise."""

    prior: NormalPrior
    generator: AbstractGenerator
    encoder: Encoder  # type: ignore[misc]  # there is an __init__

    def __init__(self, encoder: Encoder, generator: AbstractGenerator, noise: float = 0.1) -> None:
        self.encoder, self.generator = encoder, generator
        self.prior = NormalPrior((encoder.head.shape[1] // 2,))
        self.noise, self.generator_noise = noise, 0.0

    @eqx.filter_jit
    def reconstruct(  # type: ignore[override]  # an encoder needs no chains
        self, x: Float[Array, "n ..."], key: PRNGKeyArray | None = None
    ) -> Float[Array, "n ..."]:
        """Decoded means of $q(z\\mid x)$; with a key, decoded draws from it."""
        mean, log_variance = self.encoder(as_float(x))
        return self.decode(mean if key is None else drawn(mean, log_variance, key))


def drawn(
    mean: Float[Array, "n Q"], log_variance: Float[Array, "n Q"], key: PRNGKeyArray
) -> Float[Array, "n Q"]:
    """A draw from each normal, differentiable in its parameters."""
    return mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)


def kl_from_normal(
    mean: Float[Array, "n Q"], log_variance: Float[Array, "n Q"]
) -> Float[Array, " n"]:
    r"""$\mathrm{KL}(\mathcal{N}(\mu, \sigma^2)\,\|\,\mathcal{N}(0, I))$, example by example."""
    return 0.5 * jnp.sum(mean**2 + jnp.expm1(log_variance) - log_variance, axis=1)


class EvidenceBound(eqx.Module):
    """Learning a VAE: the evidence lower bound, with one draw for each example."""

    beta: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        if not self.beta >= 0:
            raise ValueError(f"beta, the weight of the KL, must not be negative, got {self.beta}.")

    @property
    def data_parallel(self) -> bool:
        return True

    @property
    def info_names(self) -> tuple[str, ...]:
        return ("log_likelihood", "kl", "elbo", "reconstruction")

    def memory(self, model: VAE, examples: int, key: PRNGKeyArray) -> dict[str, Array]:
        """Nothing is kept between updates."""
        del model, examples, key
        return {}

    def objective(
        self, model: VAE, x: Array, key: PRNGKeyArray, memory: dict[str, Array], progress: Any
    ) -> tuple[Array, tuple[dict[str, Array], dict[str, Array]]]:
        del progress
        mean, log_variance = model.encoder(x)
        made = model.decode(drawn(mean, log_variance, key))
        likelihood = jnp.mean(model.log_likelihood(x, made))
        kl = jnp.mean(kl_from_normal(mean, log_variance))
        info = {
            "log_likelihood": likelihood,
            "kl": kl,
            "elbo": likelihood - kl,
            "reconstruction": model.squared_error(likelihood),
        }
        return likelihood - self.beta * kl, (jax.lax.stop_gradient(info), memory)

    def diagnosis(self, info: dict[str, float]) -> str | None:
        del info
        return None


CLASSES = (VAE, NormalPrior, Encoder)
