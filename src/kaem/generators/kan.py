r"""The Kolmogorov-Arnold generator, strictly after the representation theorem.

$$\tilde x_o = \mathrm{act}\Big(\sum_{q=1}^{2n_z+1} \Phi_{o,q}\Big(\sum_{p=1}^{n_z} z_{q,p}\Big) + \varepsilon_o\Big)$$

(eq. generator). Deeper generators chain outer sums of widths $L_1 = 2Q + 1$, $L_2 = 2L_1 + 1$, ...
(eq. KAN), so depth is the only choice left.
"""

from math import prod
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases import Functions
from ._generator import OUTPUTS, AbstractGenerator, Decoder


class KAN(AbstractGenerator):
    """Latents [Q, P], or [Q], to data of shape `data_shape`, through univariate functions and sums alone."""

    layers: tuple[Functions, ...]
    data_shape: tuple[int, ...] = eqx.field(static=True)
    output: str = eqx.field(static=True)

    def __init__(
        self,
        coordinates: int,
        data_shape: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        depth: int = 2,
        output: str = "sigmoid",
        basis: str = "rbf",
        grid_size: int = 20,
        interval: tuple[float, float] = (-1.5, 1.5),
        activation: str | None = "relu",
        **initialisation: float,
    ) -> None:
        r"""`coordinates` is the prior's $Q$; `depth` counts layers of functions."""
        if output not in OUTPUTS:
            raise ValueError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")
        if depth < 1:
            raise ValueError(f"a KAN generator needs a depth of at least 1, got {depth}.")
        widths = [coordinates]
        for _ in range(depth - 1):
            widths.append(2 * widths[-1] + 1)
        widths.append(prod(data_shape))
        self.layers = tuple(
            Functions.init(
                inputs,
                outputs,
                key=layer_key,
                basis=basis,
                size=grid_size,
                interval=interval,
                activation=activation,
                **initialisation,
            )
            for inputs, outputs, layer_key in zip(
                widths, widths[1:], jax.random.split(key, depth), strict=False
            )
        )
        self.data_shape = tuple(data_shape)
        self.output = output

    def __call__(
        self, z: Float[Array, "Q ..."], noise: Float[Array, " X"] | None = None
    ) -> Float[Array, "..."]:
        """One latent to one data point; `noise` is added before the output activation."""
        x = z if z.ndim == 1 else jnp.sum(z, axis=1)
        for layer in self.layers:
            x = layer.layer(x)
        if noise is not None:
            x = x + noise.reshape(x.shape)
        return OUTPUTS[self.output](x).reshape(self.data_shape)

    @property
    def coordinates(self) -> int:
        return self.layers[0].shape[1]

    def decoder(self) -> Decoder:
        return jax.vmap(self)

    def regrid(
        self, z: Float[Array, "n Q *P"], ratio: float = 0.05, change: float | None = 0.01
    ) -> Self:
        """Adapt every layer's grid to what latents `z` make of its inputs.

        Layers magnify what changes in those before them: functions are refitted more and more
        closely until no larger share than `change` of what `z` makes has changed, or else grids
        stay. With None everything may change, as it may before the first update.
        """
        if change is None:
            return self._regridded(z, ratio, None)
        before = jax.vmap(self)(z)
        spread = jnp.mean((before - jnp.mean(before, axis=0)) ** 2)
        for allowed in (change, change / 4, change / 16):
            moved = self._regridded(z, ratio, allowed)
            after = jax.vmap(moved)(z)
            if jnp.mean((after - before) ** 2) <= change**2 * spread:
                return moved
        return self

    def _regridded(self, z: Float[Array, "n Q *P"], ratio: float, change: float | None) -> Self:
        x = z if z.ndim == 2 else jnp.sum(z, axis=2)
        layers = []
        for layer in self.layers:
            layers.append(layer.regrid(x.T, ratio, change=change))
            x = jax.vmap(layers[-1].layer)(x)
        return eqx.tree_at(lambda g: g.layers, self, tuple(layers))
