"""A generator that computes in bfloat16: half the bytes, and the fast units of many accelerators.

Its weights stay float32, and so do gradients, priors and losses: what is rounded to eight bits is what
flows through the generator's layers, there and back. Where a device has no such units, as most CPUs, it is
slower than float32.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._generator import AbstractGenerator, Decoder


class Half(AbstractGenerator):
    """Another generator, computed in bfloat16."""

    generator: AbstractGenerator
    data_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, generator: AbstractGenerator) -> None:
        self.generator, self.data_shape = generator, generator.data_shape

    def __call__(self, z: Float[Array, "Q ..."]) -> Float[Array, "..."]:
        return self.decoder()(z[None])[0]

    def decoder(self) -> Decoder:
        decode = jax.tree.map(_halved, self.generator).decoder()

        def halved(
            z: Float[Array, "n ..."], noise: Float[Array, "n X"] | None = None
        ) -> Float[Array, "n ..."]:
            return decode(_halved(z), _halved(noise)).astype(jnp.float32)

        return halved

    # What it is otherwise, the other is.

    @property
    def sums_latents(self) -> bool:  # type: ignore[override]
        return self.generator.sums_latents

    @property
    def range(self) -> str:
        return self.generator.range

    @property
    def coordinates(self) -> int | None:
        return self.generator.coordinates


def _halved(leaf: Any) -> Any:
    return leaf.astype(jnp.bfloat16) if eqx.is_inexact_array(leaf) else leaf
