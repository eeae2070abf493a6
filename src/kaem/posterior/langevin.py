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

from ..derived import frozen
from ..objectives import maximum_likelihood
from .chains import Chains, Memory, evaluator
from .samplers import SAMPLERS, AbstractSampler, Domain, Evaluate, Info

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

    def sampler(self, domain: Domain | None) -> AbstractSampler:
        """The chain's steps, within the domain of a prior that has one."""
        more = {"share": self.share} if self.kind == "sgld" else {}
        return SAMPLERS[self.kind](self.step_size, domain=domain, **more)

    @property
    def info_names(self) -> tuple[str, ...]:
        names = ("log_likelihood", "log_prior", "reconstruction")
        return (*names, "acceptance", "drift", "lost", "redrawn")

    def memory(self, model: "LatentModel", examples: int, key: PRNGKeyArray) -> Memory:
        """What is kept between updates: with persistent chains, latents of every example."""
        return {"chains": model.prior.sample(key, examples)} if self.persistent else {}

    def sample(
        self, model: "LatentModel", x: Float[Array, "B ..."], z: Float[Array, "B ..."], key: Any
    ) -> tuple[Float[Array, "B ..."], dict[str, Array]]:
        """Latents after `steps` steps from `z`, and means of what happened."""
        potential, _ = model.prior.for_chains()
        evaluate = evaluator(model, model.checked_data(x), potential)
        return self._run(evaluate, z, key, model.prior.bounds)

    def _run(
        self, evaluate: Evaluate, z: Array, key: PRNGKeyArray, domain: Domain | None
    ) -> tuple[Array, Any]:
        sampler = self.sampler(domain)

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            state, info = sampler.step(evaluate, state, 1.0, jax.random.fold_in(key, i))
            return state, jax.tree.map(jnp.add, total, info._asdict())

        zero = {name: jnp.zeros(()) for name in Info._fields}
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
        fixed = frozen(model)
        potential, draw = fixed.prior.for_chains()
        z = memory["chains"] if self.persistent else draw(start_key, len(x))
        z, info = self._run(evaluator(fixed, x, potential), z, chain_key, fixed.prior.bounds)
        fresh = draw(jax.random.fold_in(start_key, 1), len(x))
        z, redrawn = self.redrawn(jax.lax.stop_gradient(z), fresh, len(fixed.prior.shape))
        if self.persistent:
            memory = memory | {"chains": z}

        value, likelihood, log_prior = maximum_likelihood(model, x, z, noise_key)
        info |= self.seen(fixed, z, likelihood, log_prior, info.pop("astray"))
        info["redrawn"] = redrawn
        return self.unless_lost(value, info), (jax.lax.stop_gradient(info), memory)
