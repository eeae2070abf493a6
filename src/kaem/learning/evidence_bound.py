r"""Learning by the evidence lower bound $\mathbb{E}_q[\log p(x\mid z)] - \beta\,\mathrm{KL}(q(z\mid x)\,\|\,p(z))$."""

from math import prod
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..errors import UserError
from ..methods import ARGUMENT
from ._learner import AbstractLearner, Memory, Objective, number

if TYPE_CHECKING:
    from ..baselines import VAE


def _is_standard(prior: Any) -> bool:
    """Whether the density is that of standard normals, where two of its points can tell."""
    size = prod(prior.shape)
    z = jnp.stack([jnp.zeros(size), jnp.linspace(-1.5, 2, size)])
    wanted = jnp.sum(jax.scipy.stats.norm.logpdf(z), axis=1)
    found = prior.log_prob(z.reshape(2, *prior.shape)) if hasattr(prior, "log_prob") else jnp.nan
    return bool(jnp.allclose(found, wanted, rtol=1e-4))


class EvidenceBound(AbstractLearner):
    """Learning a VAE: the evidence lower bound, with one draw for each example."""

    beta: float = eqx.field(metadata=ARGUMENT, default=1.0)  # the weight of the KL

    def __check_init__(self) -> None:
        if not self.beta >= 0:
            raise ValueError(f"beta, the weight of the KL, must not be negative, got {self.beta}.")

    def check(self, model: Any) -> None:
        guess = self._guess(model)
        self._needs(
            model, hasattr(guess, "kl_from_standard"), "an encoder of standard normal latents"
        )
        if not _is_standard(model.prior):
            raise UserError(
                "EvidenceBound knows the divergence from a standard normal prior only, but this "
                f"{type(model).__name__} has a {type(model.prior).__name__}; learn by Encoded, which asks "
                "the prior itself (learner.kind = encoder)."
            )

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
