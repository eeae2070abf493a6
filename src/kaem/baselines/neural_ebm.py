"""The neural latent energy model: a tilted normal prior, sampled by Langevin chains."""

from typing import ClassVar

import equinox as eqx

from ..generators import AbstractGenerator
from ..learning import AbstractLearner, Langevin
from ..methods import ARGUMENT
from ..models import LatentModel
from ..priors import NeuralPrior


class NeuralEBM(LatentModel):
    """A neural latent energy model: `NeuralPrior`, a generator, and observation noise."""

    usual: ClassVar[dict[str, str]] = {"learner": "langevin", "prior": "neural", "generator": "cnn"}
    about: ClassVar[str] = (
        "A neural latent energy model: its prior is a network, sampled by Langevin chains."
    )

    prior: NeuralPrior
    generator: AbstractGenerator
    noise: float = eqx.field(metadata=ARGUMENT, default=0.1)
    generator_noise: float = eqx.field(static=True, default=0.0)

    def usual_learner(self) -> AbstractLearner:
        return Langevin()
