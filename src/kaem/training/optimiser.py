"""Adam with a rate for the prior and one for everything else, and running means of the weights."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from .parameters import Parameters


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with its own learning rate for the prior."""

    prior_rate: float = 1e-3
    generator_rate: float = 1e-3  # of all that is not the prior
    betas: tuple[float, float] = (0.9, 0.999)
    decay: Literal["constant", "cosine"] = "constant"  # cosine: to a twentieth at the last step
    warmup: int = 0  # updates over which the rates rise from zero
    weight_decay: float = 0.0  # decoupled (AdamW), of all that is not the prior
    average: float = 0.0  # decay of a mean of the weights, which is sampled and saved; 0: none

    def __post_init__(self) -> None:
        for name in ("prior_rate", "generator_rate", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"optimiser.{name} must not be negative, got {getattr(self, name)}."
                )
        if self.decay not in ("constant", "cosine"):
            raise ValueError(
                f"optimiser.decay must be one of constant, cosine, got {self.decay!r}."
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                "optimiser.betas must be two numbers of at least 0 and less than 1, such as [0.9, 0.999], "
                f"got {list(self.betas)}."
            )
        if not 0 <= self.warmup < 2**31:
            raise ValueError(
                f"optimiser.warmup must not be negative, and less than 2^31, got {self.warmup}."
            )
        if not 0 <= self.average < 1:
            raise ValueError(
                f"optimiser.average must be at least 0 and less than 1, such as 0.999, got {self.average}."
            )

    def slowed(self, share: float) -> "Adam":
        """Return the same with a share of both learning rates."""
        prior, generator = self.prior_rate * share, self.generator_rate * share
        return replace(self, prior_rate=prior, generator_rate=generator)

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
    def rate(peak: float, decay: float = 0.0) -> optax.GradientTransformation:
        rates, (b1, b2) = adam.rate(peak, steps), adam.betas
        if decay:
            return optax.adamw(rates, b1=b1, b2=b2, weight_decay=decay)
        return optax.adam(rates, b1=b1, b2=b2)

    def part(values: Parameters) -> dict[str, str]:
        return {name: "prior" if name.startswith(".prior") else "generator" for name in values}

    rates = {
        "prior": rate(adam.prior_rate),
        "generator": rate(adam.generator_rate, adam.weight_decay),
    }
    transform = optax.multi_transform(rates, part)
    return averaging(transform, adam.average) if adam.average else transform


class Averaging(NamedTuple):
    """The state of an optimiser that averages what it has made."""

    inner: Any
    mean: Parameters
    updates: Array


def averaging(
    transform: optax.GradientTransformation, decay: float
) -> optax.GradientTransformationExtraArgs:
    """Return an optimiser that also keeps a running mean of the weights it makes.

    `kaem.fit` and runs sample and save that mean. After t updates its decay is at most
    (1 + t) / (10 + t), so that it forgets the first ones.
    """
    inner = optax.with_extra_args_support(transform)

    def init(params: Any) -> Averaging:
        copied = jax.tree.map(jnp.array, params)
        return Averaging(inner.init(params), copied, jnp.zeros((), jnp.int32))

    def update(grads: Any, state: Averaging, params: Any = None, **more: Any) -> Any:
        changes, within = inner.update(grads, state.inner, params, **more)
        t = state.updates + 1
        kept = jnp.minimum(decay, t / (9 + t))
        new = optax.apply_updates(params, changes)
        mean = jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, state.mean, new)
        return changes, Averaging(within, mean, t)

    return optax.GradientTransformationExtraArgs(init, update)


def averages(optimiser: Any) -> Parameters:
    """Return the running mean that the state of an optimiser holds, or nothing."""
    return optimiser.mean if isinstance(optimiser, Averaging) else {}


def begun_anew(optimiser: Any, params: Parameters) -> Any:
    """Return the state with a running mean that begins at these weights, if it has one."""
    if not isinstance(optimiser, Averaging):
        return optimiser
    mean = jax.tree.map(jnp.array, params)
    return optimiser._replace(mean=mean, updates=jnp.zeros((), jnp.int32))
