r"""A bank of univariate functions: a basis, plus an optional base-activation branch.

$f_{q,p}(z) = b_{q,p}\,\mathrm{act}(z) + (\text{basis})_{q,p}(z)$, the residual form of
Kolmogorov-Arnold networks. `BASES` is the registry: adding a basis is one file and one line.
"""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..initialise import as_array, glorot, host_rng
from ._basis import AbstractBasis, Start
from .bspline import BSpline
from .chebyshev import Chebyshev
from .fourier import Fourier
from .mexican_hat import MexicanHat
from .morlet import Morlet
from .rbf import RBF

BASES: dict[str, type[AbstractBasis]] = {
    "rbf": RBF,
    "morlet": Morlet,
    "mexican-hat": MexicanHat,
    "bspline": BSpline,
    "chebyshev": Chebyshev,
    "fourier": Fourier,
}

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}


class Functions(eqx.Module):
    """Q x P univariate functions $f_{q,p}$."""

    basis: AbstractBasis
    base_weight: Float[Array, "Q P"] | None
    activation: str | None = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        inputs: int,
        outputs: int,
        *,
        key: PRNGKeyArray,
        basis: str = "rbf",
        size: int = 20,
        interval: tuple[float, float] = (-1.0, 1.0),
        activation: str | None = None,
        amplitude: float = 0.1,
        base_mean: float = 1.0,
        base_scale: float = 1.0,
        basis_scale: float = 1.0,
    ) -> Self:
        r"""`inputs` = P and `outputs` = Q; the other defaults are Table hp-nist's.

        **Arguments:** `size` is the number of grid intervals, degrees or harmonics;
        `amplitude` the table's $\varepsilon$; `base_mean` and `base_scale` its $\mu$ and
        $\sigma_b$: $b_{q,p}$ is a Glorot-normal weight times
        $(\mu + \sigma_b\,\mathcal{U}(-1, 1))/\sqrt{P}$; `basis_scale` is its $\sigma_s$.
        """
        if basis not in BASES:
            raise ValueError(f"unknown basis {basis!r}; choose one of {', '.join(BASES)}.")
        if activation is not None and activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}, or None."
            )
        if inputs < 1 or outputs < 1 or size < 2:
            raise ValueError(
                f"a bank of functions needs inputs >= 1, outputs >= 1 and size >= 2, "
                f"got {inputs}, {outputs} and {size}."
            )
        rng = host_rng(key)
        base_weight = None
        if activation is not None:
            gain = (base_mean + base_scale * rng.uniform(-1, 1, (outputs, inputs))) / inputs**0.5
            base_weight = as_array(gain * glorot(rng, outputs, inputs))
        start = Start(size, interval, amplitude, basis_scale)
        made = BASES[basis].init(inputs, outputs, start, rng)
        return cls(made, base_weight, activation)

    @property
    def shape(self) -> tuple[int, int]:
        """(Q, P)."""
        return self.basis.shape

    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        y = self.basis(z)
        if self.base_weight is None or self.activation is None:
            return y
        return y + self.base_weight * ACTIVATIONS[self.activation](z)

    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        y = self.basis.curves(x)
        if self.base_weight is None or self.activation is None:
            return y
        return y + self.base_weight[..., None] * ACTIVATIONS[self.activation](x)

    def layer(self, x: Float[Array, " P"]) -> Float[Array, " Q"]:
        y = self.basis.layer(x)
        if self.base_weight is None or self.activation is None:
            return y
        return y + self.base_weight @ ACTIVATIONS[self.activation](x)

    def expectation(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P"]:
        r"""$\sum_n w_n f_{q,p}(z_n)$; gradients reach the functions, not `z` or `weights`."""
        y = self.basis.expectation(z, weights)
        if self.base_weight is None or self.activation is None:
            return y
        return y + self.base_weight * jax.lax.stop_gradient(
            ACTIVATIONS[self.activation](z) @ weights
        )

    def regrid(
        self,
        samples: Float[Array, "P M"],
        ratio: float = 0.05,
        bounds: Float[Array, "P 2"] | None = None,
        change: float | None = 0.01,
    ) -> Self:
        """The same functions, but for `change`, on a grid adapted to `samples`; no-op for wavelets."""
        moved = self.basis.regrid(samples, ratio, bounds, change)
        return eqx.tree_at(lambda f: f.basis, self, moved)
