r"""What the wavelets share: $f_{q,p}(z) = w_{q,p}\,\psi\big((z - \mu_{q,p})/s_{q,p}\big)$.

Centre $\mu$, width $s$ and weight $w$ are trained, so no grid has to follow the samples.
Widths are $s = \sqrt{r^2 + s_{\min}^2}$ of a free $r$: positive, with a floor that keeps every
feature resolvable by the tables.
"""

from abc import abstractmethod
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array, glorot
from ._basis import AbstractBasis, Start


class Wavelet(AbstractBasis):
    """One wavelet for each function, with trainable centre, width and weight."""

    centre: Float[Array, "Q P"]
    raw_width: Float[Array, "Q P"]
    weight: Float[Array, "Q P"]
    tau: Float[Array, ""]
    width_floor: float = eqx.field(static=True, default=0.05)

    @classmethod
    def init(cls, inputs: int, outputs: int, start: Start, rng: np.random.Generator) -> Self:
        bound = (6 / (inputs + outputs)) ** 0.5  # Glorot-uniform
        return cls(
            centre=as_array(
                (start.interval[0] + start.interval[1]) / 2 + glorot(rng, outputs, inputs)
            ),
            raw_width=as_array(rng.uniform(-bound, bound, (outputs, inputs))),
            weight=as_array(glorot(rng, outputs, inputs) * start.scale),
            tau=as_array(np.ones(())),
        )

    @property
    def shape(self) -> tuple[int, int]:
        q, p = self.weight.shape
        return q, p

    @property
    def width(self) -> Float[Array, "Q P"]:
        return jnp.sqrt(self.raw_width**2 + self.width_floor**2)

    @property
    def reach(self) -> Float[Array, "Q P"]:
        """Return how far from its centre [Q, P] a wavelet differs from zero in float32."""
        return 7 * self.width

    @property
    def window(self) -> tuple[Array, Array]:
        return self.centre, self.reach

    @abstractmethod
    def mother(self, x: Array) -> Array:
        r"""Return the mother wavelet $\psi(x)$, element by element."""

    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        return self.weight * self.mother((z - self.centre) / self.width)

    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        scaled = (x - self.centre[..., None]) / self.width[..., None]
        return self.weight[..., None] * self.mother(scaled)

    def layer(self, x: Float[Array, " P"]) -> Float[Array, " Q"]:
        return jnp.sum(self(x[None, :]), axis=1)
