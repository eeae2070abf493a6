"""What models, chains and estimators ask of any prior over latents, learned or not."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

LogDensity = Callable[[Float[Array, "n ..."]], tuple[Array, Array]]
Draw = Callable[[PRNGKeyArray, int], Float[Array, "n ..."]]


class Start(NamedTuple):
    """Where annealing begins: a density with its score, exact draws of it, and what tilts it to the prior."""

    potential: LogDensity
    draw: Draw
    tilt: Callable[[Float[Array, "n ..."]], Float[Array, " n"]] | None = None


class LatentPrior(eqx.Module):
    """A density of latents."""

    shape: eqx.AbstractVar[tuple[int, ...]]

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """Draw `n` latents [n, *shape]."""

    @abstractmethod
    def for_chains(self) -> tuple[LogDensity, Draw]:
        """Return log-densities with their scores, and draws for chains to start from."""

    @abstractmethod
    def mean_log_prob(self, z: Float[Array, "n ..."], key: PRNGKeyArray) -> Float[Array, ""]:
        """Return the mean log-density of fixed latents [n, *shape], whose gradient trains the prior."""

    @abstractmethod
    def lost(self, z: Float[Array, "..."]) -> Float[Array, ""]:
        """Return the share of latents that are not finite, or absurdly far off."""

    @property
    def independent(self) -> bool:
        """Return whether coordinates are independent, with quantiles by `cdf`."""
        return True

    @property
    def exact(self) -> bool:
        """Whether it is normalised and drawn exactly; else `start` says what it tilts."""
        return True

    @property
    def bounds(self) -> Any:
        """Return the ends of the domain of each latent, each [*shape], or None for all of space."""
        return None

    def start(self) -> Start:
        """Return what annealing begins at: the prior itself where it can be drawn exactly."""
        return Start(*self.for_chains())

    def prepared(self) -> Self:
        """Return this prior, ready to sample."""
        return self

    def trainable(self) -> Self:
        """Return this prior without anything that goes stale when its parameters change."""
        return self
