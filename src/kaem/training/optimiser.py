"""Adam with a rate for the prior and one for everything else."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import optax

from .parameters import Parameters


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with its own learning rate for the prior."""

    prior_rate: float = 1e-3
    generator_rate: float = 1e-3  # of all that is not the prior
    betas: tuple[float, float] = (0.9, 0.999)
    decay: Literal["constant", "cosine"] = "constant"  # cosine: to a twentieth at the last step
    warmup: int = 0  # updates over which the rates rise from zero

    def __post_init__(self) -> None:
        for name in ("prior_rate", "generator_rate"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"optimiser.{name} must not be negative, got {getattr(self, name)}."
                )
        if self.decay not in ("constant", "cosine"):
            raise ValueError(
                f"optimiser.decay must be one of constant, cosine, got {self.decay!r}."
            )
        if self.warmup < 0:
            raise ValueError(f"optimiser.warmup must not be negative, got {self.warmup}.")

    def rate(self, peak: float, steps: int) -> optax.Schedule | float:
        """Return a rate as a function of the updates made, of a run of so many `steps`."""
        after: optax.Schedule = optax.constant_schedule(peak)
        if self.decay == "cosine":
            after = optax.cosine_decay_schedule(peak, max(1, steps - self.warmup), 0.05)
        elif not self.warmup:
            return peak
        # The first update counts: at step 0 the rate is not zero.
        rise = optax.linear_schedule(peak / (self.warmup + 1), peak, self.warmup)
        return optax.join_schedules([rise, after], [self.warmup]) if self.warmup else after


Optimiser: TypeAlias = Any  # an Adam, or any transformation of optax


def transformation(optimiser: Optimiser, steps: int) -> optax.GradientTransformation:
    """Return the transformation of optax that an optimiser is, for a run of so many steps."""
    if isinstance(optimiser, Adam):
        return _adam(optimiser, 0 if optimiser.decay == "constant" else steps)
    return _taking_more(optimiser)


@lru_cache(maxsize=64)
def _taking_more(transform: Any) -> optax.GradientTransformation:
    """Return a transformation that ignores what it does not ask for, such as the value of the loss."""
    return optax.with_extra_args_support(transform)


@lru_cache(maxsize=64)  # the same object again: an update that was compiled for it is found again
def _adam(adam: Adam, steps: int) -> optax.GradientTransformation:
    def rate(peak: float) -> optax.GradientTransformation:
        return optax.adam(adam.rate(peak, steps), b1=adam.betas[0], b2=adam.betas[1])

    def part(values: Parameters) -> dict[str, str]:
        return {name: "prior" if name.startswith(".prior") else "generator" for name in values}

    rates = {"prior": rate(adam.prior_rate), "generator": rate(adam.generator_rate)}
    return optax.multi_transform(rates, part)
