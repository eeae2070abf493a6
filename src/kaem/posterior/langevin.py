r"""Maximum likelihood with Langevin samples of the posterior.

An update draws latents for its batch, then differentiates the criterion at those latents. Chains
start from the prior at every update, as in the paper, or are *persistent*: every training
example keeps its last latents, so that a few steps for each update suffice.

In the loop the generator's weights are rearranged once, and the prior is a table
(`AbstractPrior.potential`): a step costs one forward and one backward pass of the generator.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..objectives import maximum_likelihood
from .chains import Chains, Memory, evaluator
from .samplers import SAMPLERS, AbstractSampler, Evaluate

if TYPE_CHECKING:
    from ..model import LatentModel


class Langevin(Chains):
    """Maximum likelihood with Langevin samples of the posterior (eq. learning-grad)."""

    share: float = eqx.field(static=True, default=1.0)  # of the pixels, for SGLD

    def __check_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of the pixels must be in (0, 1], got {self.share}.")
        if self.share < 1 and self.kind != "sgld":
            raise ValueError(
                f"a share of the pixels is for kind 'sgld' only, got {self.share} for {self.kind!r}; "
                "leave it at 1, or choose 'sgld'."
            )

    @property
    def sampler(self) -> AbstractSampler:
        if self.kind == "sgld":
            return SAMPLERS["sgld"](self.step_size, share=self.share)  # type: ignore[call-arg]
        return SAMPLERS[self.kind](self.step_size)

    @property
    def info_names(self) -> tuple[str, ...]:
        names = ("log_likelihood", "log_prior", "reconstruction")
        return (*names, "acceptance", "drift", "outside", "lost")

    def memory(self, model: "LatentModel", examples: int, key: PRNGKeyArray) -> Memory:
        """What is kept between updates: with persistent chains, latents of every example."""
        return {"chains": model.prior.sample(key, examples)} if self.persistent else {}

    def sample(
        self, model: "LatentModel", x: Float[Array, "B ..."], z: Float[Array, "B ..."], key: Any
    ) -> tuple[Float[Array, "B ..."], dict[str, Array]]:
        """Latents after `steps` steps from `z`, and means of what happened."""
        potential, _ = model.prior.for_chains()
        return self._run(evaluator(model, x, potential), z, key)

    def _run(self, evaluate: Evaluate, z: Array, key: PRNGKeyArray) -> tuple[Array, Any]:
        sampler = self.sampler

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            state, info = sampler.step(evaluate, state, 1.0, jax.random.fold_in(key, i))
            return state, jax.tree.map(jnp.add, total, info._asdict())

        zero = {"acceptance": jnp.zeros(()), "drift": jnp.zeros(())}
        start = (sampler.init(evaluate, z), zero)
        state, total = jax.lax.fori_loop(0, self.steps, step, start)
        return state.z, jax.tree.map(lambda value: value / self.steps, total)

    def objective(
        self,
        model: "LatentModel",
        x: Float[Array, "B ..."],
        key: PRNGKeyArray,
        memory: Memory,
        progress: Any,
    ) -> tuple[Array, tuple[dict[str, Array], Memory]]:
        """The criterion at fresh posterior samples, what was seen, and what to keep.

        `memory` holds the chains of this batch's examples; `progress` is the share of updates done.
        """
        del progress
        start_key, chain_key, noise_key = jax.random.split(key, 3)
        fixed = jax.lax.stop_gradient(model)
        potential, draw = fixed.prior.for_chains()
        z = memory["chains"] if self.persistent else draw(start_key, len(x))
        z, info = self._run(evaluator(fixed, x, potential), z, chain_key)
        z = jax.lax.stop_gradient(z)
        if self.persistent:
            memory = memory | {"chains": z}

        value, likelihood, log_prior = maximum_likelihood(model, x, z, noise_key)
        info |= self.seen(fixed, z, likelihood, log_prior)
        return self.unless_lost(value, info), (jax.lax.stop_gradient(info), memory)
