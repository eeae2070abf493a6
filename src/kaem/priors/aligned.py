r"""An aligned prior: independent sources, mixed linearly.

$$z = m + A s,\qquad s\sim\prod_{q=1}^{Q} p_q(s_q),\qquad
\log p(z) = \sum_q \log p_q\big((A^{-1}(z - m))_q\big) - \log|\det A|$$

The coordinates of $z$ are dependent, and have no one-dimensional densities of their own, but every
$z$ is made of $Q$ independent quantiles, those of its sources. So `inverse_cdf` and `cdf` speak of
sources, `independent` is False, and nothing here is called `densities`, `domain` or `table`: whoever
wants those asks `sources`. A generator whose first layer is linear takes the map in exactly
(`AbstractGenerator.absorb`), and `sources` alone is then the prior.
"""

from os import PathLike
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..methods import check_count, compiled
from ._latent import Draw, LatentPrior, LogDensity
from ._prior import AbstractPrior

_CONDITION = 1e6  # of a mixing whose inverse float32 cannot tell from noise


class AlignedPrior(LatentPrior):
    """Independent sources [Q] of learned one-dimensional densities, mixed to latents [Q]."""

    sources: AbstractPrior
    mixing: Float[Array, "Q Q"]
    offset: Float[Array, " Q"]
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        sources: AbstractPrior,
        mixing: Float[Array | np.ndarray, "Q Q"],
        offset: Float[Array | np.ndarray, " Q"],
    ) -> None:
        """Make a prior of `sources` of shape (Q,), the `mixing` $A$ and the `offset` $m$."""
        self.sources = sources
        self.mixing, self.offset = jnp.asarray(mixing), jnp.asarray(offset)
        self.shape = sources.shape

    def __check_init__(self) -> None:
        shape = self.sources.shape
        if len(shape) != 1:
            raise ValueError(
                f"an aligned prior mixes sources of shape (Q,), got a prior of shape {shape}; give one "
                "density for each coordinate, as a MixturePrior has."
            )
        if (self.shape, self.mixing.shape, self.offset.shape) != (shape, shape * 2, shape):
            raise ValueError(
                f"sources of shape {shape} need a mixing of shape {shape * 2} and an offset of shape "
                f"{shape}, got {self.mixing.shape} and {self.offset.shape}, for latents {self.shape}."
            )
        if any(isinstance(a, jax.core.Tracer) for a in (self.mixing, self.offset)):
            return  # of a prior made within compiled code
        mixing, offset = (np.asarray(a, np.float64) for a in (self.mixing, self.offset))
        finite = np.isfinite(mixing).all() and np.isfinite(offset).all()
        condition = np.linalg.cond(mixing) if finite else np.nan
        if not condition < _CONDITION:
            raise ValueError(
                f"the mixing of an aligned prior must be finite, as its offset, and invertible with a "
                f"condition number below {_CONDITION:.0e}, got {condition:.3g}; remove latents that are "
                "functions of others, or take what `kaem.priors.alignment.unmix` finds."
            )

    @property
    def independent(self) -> bool:
        """Return False: the mixing ties coordinates together; `cdf` gives quantiles of the sources."""
        return False

    def mixed(self, s: Float[Array, "*n Q"]) -> Float[Array, "*n Q"]:
        """Return the latents [*n, Q] of sources s [*n, Q]."""
        return self.offset + s @ self.mixing.T

    def unmixed(self, z: Float[Array, "*n Q"]) -> Float[Array, "*n Q"]:
        """Return the sources [*n, Q] of latents z [*n, Q]."""
        z = jnp.asarray(z)
        if z.shape[-1:] != self.shape:
            raise ValueError(f"z must end in the prior's shape (Q,) = {self.shape}, got {z.shape}.")
        return (z - self.offset) @ jnp.linalg.inv(self.mixing).T

    def _log_volume(self) -> Float[Array, ""]:
        return jnp.linalg.slogdet(self.mixing)[1]

    @compiled()
    def log_prob(self, z: Float[Array, "*n Q"]) -> Float[Array, "*n"]:
        """Return the log-density [*n] of latents z [*n, Q]; -inf where a source is outside its domain."""
        return self.sources.log_prob(self.unmixed(z)) - self._log_volume()

    @compiled()
    def score(self, z: Float[Array, "*n Q"]) -> Float[Array, "*n Q"]:
        r"""Return $\nabla_z \log p(z)$ [*n, Q] of latents z [*n, Q]."""
        return self.sources.score(self.unmixed(z)) @ jnp.linalg.inv(self.mixing)

    @compiled()
    def cdf(self, z: Float[Array, "*n Q"]) -> Float[Array, "*n Q"]:
        """Return the quantiles [*n, Q] of the sources of latents z [*n, Q]: independent, though z is not."""
        return self.sources.cdf(self.unmixed(z))

    @compiled()
    def inverse_cdf(self, u: Float[Array, "*n Q"]) -> Float[Array, "*n Q"]:
        """Return the latents [*n, Q] whose sources have quantiles u [*n, Q] in [0, 1]."""
        return self.mixed(self.sources.inverse_cdf(u))

    @compiled(check_count)
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
        """Draw `n` latents [n, Q], exactly, in one pass."""
        return self.mixed(self.sources.sample(key, n))

    def for_chains(self) -> tuple[LogDensity, Draw]:
        """Return log-densities [n] with scores [n, Q] in z, and draws, of one table and one inverse.

        The domain is a parallelepiped, so that `bounds` is None: beyond it chains follow the score of
        the reference back, and Metropolis rejects.
        """
        potential, draw_sources = self.sources.for_chains()
        inverse, log_volume = jnp.linalg.inv(self.mixing), self._log_volume()

        def log_density(z: Float[Array, "n Q"]) -> tuple[Float[Array, " n"], Float[Array, "n Q"]]:
            log_p, score = potential((z - self.offset) @ inverse.T)
            return jnp.sum(log_p, axis=-1) - log_volume, score @ inverse

        def draw(key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
            return self.mixed(draw_sources(key, n))

        return log_density, draw

    def mean_log_prob(
        self, z: Float[Array, "n Q"], key: PRNGKeyArray | None = None
    ) -> Float[Array, ""]:
        """Return the mean log-density of fixed latents [n, Q], differentiable in energies, mixing and offset."""
        return jnp.mean(self.log_prob(jax.lax.stop_gradient(z)))

    def lost(self, z: Float[Array, "*n Q"]) -> Float[Array, ""]:
        """Return the share of sources that are not finite, or farther off than three times their domain."""
        return self.sources.lost(self.unmixed(z))

    def prepared(self, tolerance: float = 2e-7, cells: int | None = None) -> Self:
        """Return this prior with the table of its sources built once; see `AbstractPrior.prepared`."""
        return self._with(self.sources.prepared(tolerance, cells))

    def trainable(self) -> Self:
        return self._with(self.sources.trainable())

    def _with(self, sources: AbstractPrior) -> Self:
        return eqx.tree_at(lambda p: p.sources, self, sources)

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of this prior."""
        condition = float(np.linalg.cond(np.asarray(self.mixing, np.float64)))
        return [*self.sources.facts(), ("mixing", f"z = m + A s, condition number {condition:.3g}")]

    def save(self, path: str | PathLike[str]) -> None:
        """Raise: without the generator that takes its map in, the prior of a file has no use."""
        raise ValueError(
            f"an aligned prior is not written alone, to {path}: save the whole model, or its prior of "
            "independent coordinates by `model.folded().prior.save(path)`."
        )

    def file_notes(self) -> dict[str, str]:
        """Return what a model file says beside structure and arrays."""
        return self.sources.file_notes()
