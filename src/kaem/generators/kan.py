r"""The Kolmogorov-Arnold generator, strictly after the representation theorem.

$$\tilde x_o = \mathrm{act}\Big(\sum_{q=1}^{2n_z+1} \Phi_{o,q}\Big(\sum_{p=1}^{n_z} z_{q,p}\Big) + \varepsilon_o\Big)$$

(eq. generator). Deeper generators chain outer sums of widths $L_1 = 2Q + 1$, $L_2 = 2L_1 + 1$, ...
(eq. KAN), so depth is the only choice left.
"""

from math import prod
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bases import Functions
from ..initialise import as_array
from ._generator import OUTPUTS, AbstractGenerator, Decoder


class KAN(AbstractGenerator):
    """Latents [Q, P], or [Q], to data of shape `data_shape`, through univariate functions and sums alone."""

    sums_latents: ClassVar[bool] = True

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
        amplitude: float = 0.1,
        base_mean: float = 1.0,
        base_scale: float = 1.0,
        basis_scale: float = 1.0,
    ) -> None:
        r"""Make a new generator: `coordinates` is the prior's $Q$; `depth` counts layers of functions."""
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
                amplitude=amplitude,
                base_mean=base_mean,
                base_scale=base_scale,
                basis_scale=basis_scale,
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
        """Return the data point [*data_shape] of one latent [Q, P] or [Q]; `noise` is added before the output activation."""
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
        before = np.asarray(_decoded(self, z))
        spread = np.mean((before - before.mean(axis=0)) ** 2)
        for allowed in (change, change / 4, change / 16):
            moved = self._regridded(z, ratio, allowed)
            after = np.asarray(_decoded(moved, z))
            if np.mean((after - before) ** 2) <= change**2 * spread:
                return moved
        return self

    def _regridded(self, z: Float[Array, "n Q *P"], ratio: float, change: float | None) -> Self:
        x, layers = np.asarray(z), []
        x = x if x.ndim == 2 else x.sum(axis=2)
        for layer in self.layers:
            layers.append(layer.regrid(x.T, ratio, change=change))
            if len(layers) < len(self.layers):
                x = np.asarray(_layer(layers[-1], as_array(x)))
        return eqx.tree_at(lambda g: g.layers, self, tuple(layers))


@eqx.filter_jit
def _decoded(generator: KAN, z: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    return jax.vmap(generator)(z)


@eqx.filter_jit
def _layer(functions: Functions, x: Float[Array, "n P"]) -> Float[Array, "n Q"]:
    return jax.vmap(functions.layer)(x)
