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
from ..methods import ARGUMENT
from ..posterior.evaluator import evaluator
from ..posterior.kernels import SAMPLERS, AbstractSampler, Domain, Evaluate, Info
from ._learner import Memory, Objective
from .chains import Chains
from .criteria import maximum_likelihood

if TYPE_CHECKING:
    from ..models import LatentModel


class Langevin(Chains):
    """Maximum likelihood with Langevin samples of the posterior (eq. learning-grad)."""

    steps: int = eqx.field(static=True, default=40)  # N_local, moves of a chain for each update
    step_size: float = eqx.field(metadata=ARGUMENT, default=0.01)  # eta
    sampler: str = eqx.field(static=True, default="ula")  # the local moves of a chain
    persistent: bool = eqx.field(static=True, default=False)  # every example keeps its latents
    share: float = eqx.field(static=True, default=1.0)  # of the pixels, for SGLD

    def __check_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of the pixels must be in (0, 1], got {self.share}.")
        if self.share < 1 and self.sampler != "sgld":
            raise ValueError(
                f"a share of the pixels is for sampler 'sgld' only, got {self.share} for {self.sampler!r}; "
                "leave it at 1, or choose 'sgld'."
            )

    def kernel(self, domain: Domain | None) -> AbstractSampler:
        """Return the chain's steps, within the domain of a prior that has one."""
        more = {"share": self.share} if self.sampler == "sgld" else {}
        return SAMPLERS[self.sampler](domain=domain, **more)

    @property
    def info_names(self) -> tuple[str, ...]:
        names = ("log_likelihood", "log_prior", "reconstruction")
        return (*names, "acceptance", "drift", "lost", "redrawn")

    def memory(self, model: "LatentModel", examples: int, key: PRNGKeyArray) -> Memory:
        """Return what is kept between updates: with persistent chains, latents of every example."""
        return {"chains": model.prior.sample(key, examples)} if self.persistent else {}

    def sample(
        self, model: "LatentModel", x: Float[Array, "B ..."], z: Float[Array, "B ..."], key: Any
    ) -> tuple[Float[Array, "B ..."], dict[str, Array]]:
        """Return latents [B, ...] after `steps` steps from `z`, and means of what happened."""
        return self._sampled(model, model.checked_data(x), z, key)

    @eqx.filter_jit
    def _sampled(self, model: "LatentModel", x: Array, z: Array, key: Any) -> tuple[Array, Any]:
        potential, _ = model.prior.for_chains()
        return self._run(evaluator(model, x, potential), z, key, model.prior.bounds)

    def _run(
        self, evaluate: Evaluate, z: Array, key: PRNGKeyArray, domain: Domain | None
    ) -> tuple[Array, Any]:
        kernel = self.kernel(domain)

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            at = jax.random.fold_in(key, i)
            state, info = kernel.step(evaluate, state, 1.0, self.step_size, at)
            return state, jax.tree.map(lambda a, b: a + jnp.mean(b), total, info._asdict())

        zero = {name: jnp.zeros(()) for name in Info._fields}
        start = (kernel.init(evaluate, z), zero)
        state, total = jax.lax.fori_loop(0, self.steps, step, start)
        return state.z, jax.tree.map(lambda value: value / self.steps, total)

    def objective(
        self, model: "LatentModel", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        """Return the criterion at fresh posterior samples, what was seen, and what to keep.

        `memory` holds the chains of this batch's examples; `progress` is the share of updates done.
        """
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
        info |= {"log_likelihood": likelihood, "log_prior": log_prior, "redrawn": redrawn}
        return self.reported(value, fixed, z, info, memory)
