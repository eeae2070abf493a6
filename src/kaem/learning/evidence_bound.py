r"""Learning by the evidence lower bound $\mathbb{E}_q[\log p(x\mid z)] - \beta\,\mathrm{KL}(q(z\mid x)\,\|\,p(z))$."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..methods import ARGUMENT
from ._learner import AbstractLearner, Memory, Objective, number

if TYPE_CHECKING:
    from ..baselines import VAE


class EvidenceBound(AbstractLearner):
    """Learning a VAE: the evidence lower bound, with one draw for each example."""

    beta: float = eqx.field(metadata=ARGUMENT, default=1.0)  # the weight of the KL

    def __check_init__(self) -> None:
        if not self.beta >= 0:
            raise ValueError(f"beta, the weight of the KL, must not be negative, got {self.beta}.")

    def check(self, model: Any) -> None:
        fits = hasattr(model, "encoder") and not hasattr(model, "generate")
        self._needs(model, fits, "an encoder of standard normal latents")

    @property
    def info_names(self) -> tuple[str, ...]:
        return ("log_likelihood", "kl", "elbo", "reconstruction")

    def objective(
        self, model: "VAE", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        guess = model.encoded(x)
        made = model.decode(guess.draw(key))
        likelihood = jnp.mean(model.log_likelihood(x, made))
        kl = jnp.mean(guess.kl_from_standard())
        info = {
            "log_likelihood": likelihood,
            "kl": kl,
            "elbo": likelihood - kl,
            "reconstruction": model.squared_error(likelihood),
        }
        return likelihood - self.beta * kl, (jax.lax.stop_gradient(info), memory)

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        kl, error = number(last, "kl", ".1f"), number(last, "reconstruction", ".4f")
        return [("encoder", f"KL {kl} nats; squared error of a pixel {error}")]
