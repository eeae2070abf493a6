"""What learning from chains shares: evaluating a batch of posteriors, and noticing lost chains."""

from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .samplers import SAMPLERS, Evaluate, Evaluation, per_chain

if TYPE_CHECKING:
    from ..model import LatentModel

Memory = dict[str, Array]
_LOST = 0.25  # share of moves that went astray at which training stops


def evaluator(
    model: "LatentModel",
    x: Float[Array, "B ..."],
    potential: Callable[[Array], tuple[Array, Array]],
) -> Evaluate:
    """`evaluate` of a batch, for latents [..., B, *event] of any number of chains for each example.

    `potential` makes log p and its score of latents [B, *event], the former as a whole or by
    coordinates.
    """
    residuals = model.generator.residuals(x)
    event = model.prior.shape
    precision = 1 / model.noise**2

    def evaluate(
        z: Float[Array, "*n B event"], key: PRNGKeyArray | None = None, share: float = 1.0
    ) -> Evaluation:
        """With a `key`, the likelihood's gradient is estimated from a `share` of the pixels."""
        batch = z.shape[: z.ndim - len(event)]
        if len(batch) > 1:  # one batch after the other: all at once would leave the caches
            each = z.reshape(-1, *z.shape[len(batch) - 1 :])
            found = jax.lax.map(lambda z: evaluate(z, key, share), each)
            return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[2:]), found)
        gaps, pull = jax.vjp(residuals, z)
        squares = jnp.sum(jnp.stack([_squares(gap) for gap in gaps]), axis=0)
        if key is not None:
            keys = jax.random.split(key, len(gaps))
            gaps = tuple(
                jnp.where(jax.random.bernoulli(k, share, gap.shape), gap / share, 0)
                for k, gap in zip(keys, gaps, strict=True)
            )
        (gradient,) = pull(tuple(-precision * gap for gap in gaps))
        log_prior, prior_score = potential(z)
        return Evaluation(
            -0.5 * precision * squares - model.log_constant,
            gradient,
            jnp.sum(log_prior.reshape(len(z), -1), axis=1),
            prior_score,
        )

    return evaluate


def _squares(gap: Float[Array, "... n X"]) -> Float[Array, " n"]:
    return jnp.sum(gap**2, axis=tuple(i for i in range(gap.ndim) if i != gap.ndim - 2))


class Chains(eqx.Module):
    """A posterior that is sampled by chains."""

    steps: int = eqx.field(static=True, default=40)
    step_size: float = eqx.field(static=True, default=0.01)
    kind: str = eqx.field(static=True, default="ula")
    persistent: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.kind not in SAMPLERS:
            raise ValueError(f"unknown sampler {self.kind!r}; choose one of {', '.join(SAMPLERS)}.")
        if self.steps < 1 or not self.step_size > 0:
            raise ValueError(
                "chains need steps >= 1 and a positive step_size, "
                f"got {self.steps} and {self.step_size}."
            )

    @property
    def data_parallel(self) -> bool:
        """Whether a batch may be split over devices."""
        return True

    @property
    def follows_score(self) -> bool:
        """Whether the prior's tabulated score, and not only its CDF, has to be right."""
        return True

    def redrawn(
        self, z: Float[Array, "*n event"], fresh: Float[Array, "*n event"], event: int
    ) -> tuple[Float[Array, "*n event"], Float[Array, ""]]:
        """Chains that are not finite begin anew at `fresh` draws of the prior; and their share.

        One example whose likelihood overflowed does not end a run, nor wait for it in its memory.
        """
        sound = jnp.all(jnp.isfinite(z), axis=tuple(range(z.ndim - event, z.ndim)))
        return jnp.where(per_chain(sound, z), z, fresh), jnp.mean(~sound)

    def seen(
        self, model: "LatentModel", z: Array, log_likelihood: Array, log_prior: Array, astray: Array
    ) -> dict[str, Array]:
        """What every kind of chain reports of the latents z at which it ended."""
        return {
            "log_likelihood": log_likelihood,
            "log_prior": log_prior,
            "reconstruction": model.squared_error(log_likelihood),
            "lost": jnp.maximum(astray, model.prior.lost(z)),
        }

    def unless_lost(self, value: Array, info: dict[str, Array]) -> Array:
        """`value`, or NaN where a good part of the chains went astray."""
        return jnp.where(info["lost"] > _LOST, jnp.nan, value)

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """What chains that went astray need, or None."""
        if isnan(info["log_prior"]) and info["lost"] == 0:
            return (
                "the log-prior is not a number. If the prior is a neural energy, its own Langevin "
                "chains have diverged, as they do where it has become steep: lower "
                "neural_ebm.step_size or optimiser.prior_rate"
            )
        # An average over devices: one of them may have lost its chains alone.
        if info["lost"] <= _LOST / jax.device_count():
            return None
        return (
            f"the Langevin chains diverged: {info['lost']:.0%} of the latents drifted through half of "
            "the prior's domain in one step, or were not finite. posterior.step_size = "
            f"{self.step_size:g} is too large for this posterior; try "
            f"`--set posterior.step_size={min(self.step_size / 10, 0.01):g}`"
        )
