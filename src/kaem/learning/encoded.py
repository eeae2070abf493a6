r"""Learning with an encoder $q(z\mid x)$ that sampling does not need.

Everything is trained by the evidence bound
$$\log p(x) \ge \mathbb{E}_q[\log p(x\mid z) + \log p(z)] + \mathbb{H}[q(\cdot\mid x)],$$
with one draw of $q$ for each example. The log-prior is the prior's own, normalised by quadrature, so
that the bound is exact up to the draw; where chains make tens of passes through the generator for an
update, this makes one.

With `steps`, the draws are refined by as many Langevin steps. Prior and generator then learn from the
refined latents by maximum likelihood, as in the paper, and only the encoder by the bound.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..derived import frozen
from ..methods import ARGUMENT
from ._learner import AbstractLearner, Memory, Objective, number
from .criteria import maximum_likelihood
from .langevin import Langevin

if TYPE_CHECKING:
    from ..models import LatentModel


class Encoded(AbstractLearner):
    """The evidence bound, with draws of an encoder; refined by Langevin steps if there are any."""

    steps: int = eqx.field(static=True, default=0)  # of Langevin, from the encoder's draws
    step_size: float = eqx.field(metadata=ARGUMENT, default=0.01)  # eta
    beta: float = eqx.field(metadata=ARGUMENT, default=1.0)  # the weight of the KL: 1 is the bound

    def __check_init__(self) -> None:
        if self.steps < 0 or not self.step_size > 0 or not self.beta >= 0:
            raise ValueError(
                "learning with an encoder needs steps of at least 0, a positive step_size and a beta of "
                f"at least 0, got {self.steps}, {self.step_size} and {self.beta}."
            )

    def check(self, model: Any) -> None:
        self._folded(model)
        guesses = hasattr(self._guess(model), "draw_with_entropy")
        what = "an encoder (encoder.kind, KAEM(encoder=...), or `encoded` of a model of your own)"
        self._needs(model, guesses, what)
        self._needs(model, hasattr(model.prior, "log_prob"), "a prior with `log_prob`")

    @property
    def info_names(self) -> tuple[str, ...]:
        names = ("log_likelihood", "log_prior", "kl", "elbo", "reconstruction")
        return (*names, "refined_log_likelihood") if self.steps else names

    @property
    def follows_score(self) -> bool:
        return self.steps > 0

    def objective(
        self, model: "LatentModel", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        """Return the bound, or the bound of the encoder and the likelihood at refined latents."""
        draw_key, noise_key, chain_key, refined_key = jax.random.split(key, 4)
        guess = model.encoded(x)
        assert guess is not None
        z, entropy = guess.draw_with_entropy(draw_key)
        fixed = frozen(model)
        judge = fixed if self.steps else model
        log_prior = jnp.mean(judge.prior.log_prob(z))
        likelihood = jnp.mean(judge.log_likelihood(x, judge.decode(z, noise_key)))
        kl = -jnp.mean(entropy) - log_prior
        value = likelihood - self.beta * kl
        info = {
            "log_likelihood": likelihood,
            "log_prior": log_prior,
            "kl": kl,
            "elbo": likelihood - kl,
            "reconstruction": model.squared_error(likelihood),
        }
        if self.steps:
            chains = eqx.tree_at(lambda c: c.step_size, Langevin(self.steps), self.step_size)
            start = jax.lax.stop_gradient(z)
            refined, _ = chains.sample(fixed, x, start, chain_key)
            refined = jnp.where(jnp.isfinite(refined), refined, start)
            more, again, _ = maximum_likelihood(
                model, x, jax.lax.stop_gradient(refined), refined_key
            )
            value, info["refined_log_likelihood"] = value + more, again
        return value, (jax.lax.stop_gradient(info), memory)

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        kl, error = number(last, "kl", ".1f"), number(last, "reconstruction", ".4f")
        more = f", refined by {self.steps} Langevin steps" if self.steps else ""
        return [("encoder", f"KL {kl} nats; squared error of a pixel {error}{more}")]
