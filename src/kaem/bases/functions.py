r"""A bank of univariate functions: a basis, plus an optional base-activation branch.

$f_{q,p}(z) = b_{q,p}\,\mathrm{act}(z) + (\text{basis})_{q,p}(z)$, the residual form of
Kolmogorov-Arnold networks. `BASES` is the registry: adding a basis is one file and one line.
"""

from collections.abc import Callable, Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..initialise import as_array, glorot, host_rng
from ._basis import AbstractBasis, Start
from ._grid import Bounds, Samples
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

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
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
        r"""Return Q = `outputs` times P = `inputs` new functions; the defaults are Table hp-nist's.

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
        """Return (Q, P)."""
        return self.basis.shape

    @property
    def name(self) -> str:
        """Return what settings call the basis."""
        return next((n for n, cls in BASES.items() if type(self.basis) is cls), "unknown")

    @property
    def window(self) -> tuple[Array, Array] | None:
        """Return where functions differ from zero, if only there: centres and reaches [Q, P]."""
        return None if self.base_weight is not None else self.basis.window

    def _plus(self, y: Array, x: Array, branch: Callable[[Array, Array], Array]) -> Array:
        """Return each function [Q, P] at its own point of z [Q, P]."""
        if self.base_weight is None or self.activation is None:
            return y
        return y + branch(self.base_weight, ACTIVATIONS[self.activation](x))

    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        return self._plus(self.basis(z), z, lambda b, act: b * act)

    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        return self._plus(self.basis.curves(x), x, lambda b, act: b[..., None] * act)

    def layer(self, x: Float[Array, " P"]) -> Float[Array, " Q"]:
        return self._plus(self.basis.layer(x), x, lambda b, act: b @ act)

    def expectation(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P"]:
        r"""Return $\sum_n w_n f_{q,p}(z_n)$ [Q, P] of samples [Q, P, n]; gradients reach the functions, not `z` or `weights`."""
        y = self.basis.expectation(z, weights)
        return self._plus(y, z, lambda b, act: b * jax.lax.stop_gradient(act @ weights))

    def regrid(
        self,
        samples: Samples,
        ratio: float = 0.05,
        bounds: Bounds = None,
        change: float | None = 0.01,
    ) -> Self:
        """Return the same functions, but for `change`, on a grid adapted to `samples` [P, M]."""
        moved = self.basis.regrid(samples, ratio, bounds, change)
        return eqx.tree_at(lambda f: f.basis, self, moved)

    def reordered(self, order: Sequence[int]) -> Self:
        """Return the functions of the outputs in another order: the first of the new is `order[0]`."""
        weight = self.base_weight
        chosen = None if weight is None else weight[np.asarray(order)]
        return eqx.tree_at(
            lambda f: (f.basis, f.base_weight),
            self,
            (self.basis.reordered(order), chosen),
            is_leaf=lambda leaf: leaf is None,
        )
