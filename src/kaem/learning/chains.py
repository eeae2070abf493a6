"""What learning from chains shares: noticing lost chains, and beginning them anew."""

from math import isnan
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..parallel import average
from ..posterior.kernels import SAMPLERS, per_chain
from ._learner import AbstractLearner, Info, Memory, Objective, number

if TYPE_CHECKING:
    from ..models import LatentModel

_LOST = 0.25  # share of moves that went astray at which training stops


class Chains(AbstractLearner):
    """Learning from latents that are sampled by chains."""

    steps: eqx.AbstractVar[int]
    step_size: eqx.AbstractVar[float]
    sampler: eqx.AbstractVar[str]
    persistent: eqx.AbstractVar[bool]

    def __check_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(
                f"unknown sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}."
            )
        if self.steps < 1 or not self.step_size > 0:
            raise ValueError(
                "chains need steps >= 1 and a positive step_size, "
                f"got {self.steps} and {self.step_size}."
            )

    def check(self, model: Any) -> None:
        chains = hasattr(getattr(model, "prior", None), "for_chains")
        self._needs(model, chains, "a prior")
        self._folded(model)
        self._leaves_no_encoder(model)

    @property
    def follows_score(self) -> bool:
        return True

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        kind = "persistent" if self.persistent else "cold"
        text = f"{self.steps} {self.sampler.upper()} steps, {kind} chains{self._more()}"
        error = number(last, "reconstruction", ".4f")
        return [("posterior", f"{text}; squared error of a pixel {error}")]

    def _more(self) -> str:
        return ""

    def advice(self, metrics: dict[str, float]) -> str | None:
        if metrics.get("acceptance", 1.0) >= 0.05:
            return None
        return (
            f"only {metrics['acceptance']:.1%} of the Metropolis proposals are accepted, so the "
            "chains hardly move; lower learner.step_size"
        )

    def redrawn(
        self, z: Float[Array, "*n event"], fresh: Float[Array, "*n event"], event: int
    ) -> tuple[Float[Array, "*n event"], Float[Array, ""]]:
        """Return the chains, of which those not finite begin anew at `fresh` draws, and their share.

        One example whose likelihood overflowed does not end a run, nor wait for it in its memory.
        """
        sound = jnp.all(jnp.isfinite(z), axis=tuple(range(z.ndim - event, z.ndim)))
        return jnp.where(per_chain(sound, z), z, fresh), jnp.mean(~sound)

    def reported(
        self, value: Array, model: "LatentModel", z: Array, info: Info, memory: Memory
    ) -> Objective:
        """Return `value`, or NaN where many chains, which ended at z, are lost; what was seen and is kept."""
        lost = jnp.maximum(*average((info.pop("astray"), model.prior.lost(z))))
        info |= {"lost": lost, "reconstruction": model.squared_error(info["log_likelihood"])}
        return jnp.where(lost > _LOST, jnp.nan, value), (jax.lax.stop_gradient(info), memory)

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """Return what chains that went astray need, or None."""
        if isnan(info["log_prior"]) and info["lost"] == 0:
            return (
                "the log-prior is not a number. If the prior is a neural energy, its own Langevin "
                "chains have diverged, as they do where it has become steep: lower "
                "prior.step_size or optimiser.prior_rate"
            )
        if info["lost"] <= _LOST:
            return None
        return (
            f"the Langevin chains diverged: {info['lost']:.0%} of the latents drifted through half of "
            "the prior's domain in one step, or were not finite. learner.step_size = "
            f"{self.step_size:g} is too large for this posterior; try "
            f"`--set learner.step_size={min(self.step_size / 10, 0.01):g}`"
        )
