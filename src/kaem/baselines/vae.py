r"""The variational autoencoder: a standard normal prior and an encoder $q(z\mid x)$."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from ..generators import AbstractGenerator
from ..layers import AbstractEncoder
from ..learning import AbstractLearner, EvidenceBound
from ..methods import ARGUMENT
from ..models import LatentModel, as_float
from ..observation import Lens
from ..posterior.guess import Normal
from ..priors import NormalPrior


class VAE(LatentModel):
    """A variational autoencoder: `NormalPrior`, a generator, an encoder and observation noise."""

    usual: ClassVar[dict[str, str]] = {
        "learner": "evidence-bound",
        "prior": "normal",
        "generator": "cnn",
        "encoder": "convolutional",
        "lens": "none",
    }
    about: ClassVar[str] = (
        "A variational autoencoder: a standard normal prior, a decoder, and an encoder."
    )

    prior: NormalPrior
    generator: AbstractGenerator
    encoder: AbstractEncoder
    noise: float = eqx.field(metadata=ARGUMENT)
    generator_noise: float = eqx.field(static=True)
    lens: Lens | None = None

    def __init__(
        self,
        encoder: AbstractEncoder,
        generator: AbstractGenerator,
        noise: float = 0.1,
        lens: Lens | None = None,
    ) -> None:
        """Put the parts together; `noise` is sigma, the likelihood's scale, and `lens` what it looks through."""
        if encoder.mixing_matrix is not None:
            raise ValueError(
                "the latents of a VAE are independent under its encoder, but this one mixes them; leave "
                "encoder.mixing out."
            )
        self.encoder, self.generator = encoder, generator
        self.prior = NormalPrior(encoder.latents)
        self.noise, self.generator_noise = noise, 0.0
        self.lens = lens

    def usual_learner(self) -> AbstractLearner:
        return EvidenceBound()

    def encoded(self, x: Float[Array, "n ..."]) -> Normal:
        """Return $q(z\\mid x)$ for each example."""
        return Normal(*self.encoder(as_float(x)))
