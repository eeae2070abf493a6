r"""KAEM = prior + generator + observation noise.

$z \sim p_f(z)$, $\tilde x = G(z, \sigma_\varepsilon\varepsilon)$, $p(x \mid z) = \mathcal{N}(x; \tilde x, \sigma^2 I)$.
"""

from abc import abstractmethod
from math import isfinite, log, pi, prod
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .generators import AbstractGenerator
from .methods import check_count, compiled
from .priors import AbstractPrior

if TYPE_CHECKING:
    from .interpret.closed_forms import Fits


def as_float(x: Array) -> Float[Array, "..."]:
    """Pixels in [0, 1] from bytes; floats as they are."""
    x = jnp.asarray(x)
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def _check_quantiles(model: Any, u: Any) -> None:
    if not isinstance(u, jax.core.Tracer) and not np.all(
        (np.asarray(u) >= 0) & (np.asarray(u) <= 1)
    ):
        raise ValueError(
            "quantiles u must be in [0, 1], one for each latent, got values from "
            f"{np.min(u):.4g} to {np.max(u):.4g}."
        )


class AbstractModel(eqx.Module):
    """What training, files and commands ask of a model."""

    @property
    @abstractmethod
    def data_shape(self) -> tuple[int, ...]:
        """Of one example."""

    @property
    @abstractmethod
    def output(self) -> str:
        """`sigmoid` where data are in [0, 1], or `identity`."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """`n` new data points."""

    def prepared(self) -> Self:
        """This model, ready to sample as fast and as exactly as it can."""
        return self

    def trainable(self) -> Self:
        """This model without anything that goes stale when its parameters change."""
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one `.safetensors` file, atomically."""
        from .serialisation import save

        save(self, path)


class LatentModel(AbstractModel):
    """A prior over latents, a generator, and Gaussian observation noise."""

    prior: Any  # with `shape` and `sample(key, n)`
    generator: AbstractGenerator
    noise: float = eqx.field(static=True, default=0.1)  # sigma, the likelihood's scale
    generator_noise: float = eqx.field(static=True, default=0.0)  # sigma_epsilon

    def __check_init__(self) -> None:
        noises = (self.noise, self.generator_noise)
        numbers = all(isinstance(n, int | float) and isfinite(n) for n in noises)
        if not numbers or self.noise <= 0 or self.generator_noise < 0:
            raise ValueError(
                "noise must be positive and generator_noise non-negative, both finite numbers, got "
                f"{self.noise!r} and {self.generator_noise!r}."
            )
        takes = self.generator.coordinates
        if takes is not None and takes != self.prior.shape[0]:
            raise ValueError(
                f"the generator takes {takes} latent coordinates, but the prior has "
                f"{self.prior.shape[0]}; build both for the same number."
            )
        if takes is None:
            self._check_generator()

    def _check_generator(self) -> None:
        """That a latent of the prior makes one example of the shape that the generator states."""
        latent = jax.ShapeDtypeStruct(self.prior.shape, jnp.float32)
        try:
            made = eqx.filter_eval_shape(self.generator, latent).shape
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a {type(self.generator).__name__} cannot be called with one latent of the prior's shape "
                f"{self.prior.shape}: {error}"
            ) from error
        if made != tuple(self.generator.data_shape):
            raise ValueError(
                f"a {type(self.generator).__name__} makes examples of shape {made} of a latent of shape "
                f"{self.prior.shape}, but its data_shape is {self.generator.data_shape}."
            )

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.generator.data_shape

    @property
    def output(self) -> str:
        return self.generator.range

    @compiled()
    def decode(
        self, z: Float[Array, "n ..."], key: PRNGKeyArray | None = None
    ) -> Float[Array, "n ..."]:
        """Latents to data; with a key, the generator's own noise is added."""
        decode = self.generator.decoder()
        if key is None or self.generator_noise == 0:
            return decode(z)
        noise = jax.random.normal(key, (z.shape[0], prod(self.data_shape)))
        return decode(z, self.generator_noise * noise)

    @compiled(check_count)
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """`n` new data points: draws from the prior, decoded."""
        return self.decode(self.prior.sample(key, n))

    def checked_data(self, x: Any) -> Float[Array, "n ..."]:
        """Examples as the model makes them: bytes scaled to [0, 1], or an error that says what is wrong."""
        shape, own = np.shape(x), self.data_shape
        if own[-1:] == (1,) and shape[1:] == own[:-1]:
            shape = (*shape, 1)  # grey images often come without channels
        if shape[1:] != own or shape[0] == 0:
            raise ValueError(
                f"the model generates data of shape {own}, got examples of shape {shape}; give at "
                "least one, along the first axis."
            )
        if self.output == "sigmoid" and not isinstance(x, jax.core.Tracer):
            given = np.asarray(x)
            if given.dtype != np.uint8 and not (given.min() >= 0 and given.max() <= 1):
                raise ValueError(
                    f"the model makes values in [0, 1], got examples from {given.min():.4g} to "
                    f"{given.max():.4g}; give bytes (uint8), or divide by 255."
                )
        return as_float(x).reshape(shape)

    @compiled(check_count)
    def sample_with_noise(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        r"""`n` draws from $p(x)$: those of `sample`, each with noise $\mathcal{N}(0, \sigma^2 I)$."""
        means = self.sample(key, n)
        # A number that no prior folds in, nor splits as many keys: `fold_in(key, 1)` is one of those.
        return means + self.noise * jax.random.normal(
            jax.random.fold_in(key, 2**32 - 1), means.shape
        )

    @property
    def log_constant(self) -> float:
        r"""$\frac D2\log 2\pi\sigma^2$ of the likelihood's D dimensions."""
        return prod(self.data_shape) / 2 * log(2 * pi * self.noise**2)

    def log_likelihood(
        self, x: Float[Array, "..."], means: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        r"""$\log\mathcal{N}(x; \tilde x, \sigma^2 I)$, example by example."""
        axes = tuple(range(means.ndim - len(self.data_shape), means.ndim))
        return -jnp.sum((x - means) ** 2, axis=axes) / (2 * self.noise**2) - self.log_constant

    def squared_error(self, log_likelihood: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean squared error of a pixel that a log-likelihood amounts to."""
        size = prod(self.data_shape)
        return -2 * self.noise**2 / size * (log_likelihood + self.log_constant)

    def log_likelihood_matrix(
        self, x: Float[Array, "B ..."], means: Float[Array, "N ..."]
    ) -> Float[Array, "B N"]:
        r"""$\log\mathcal{N}(x_b; \tilde x_s, \sigma^2 I)$ for all pairs, as one matrix product."""
        if x.shape[1:] != self.data_shape:
            raise ValueError(
                f"the model generates data of shape {self.data_shape}, got examples of "
                f"shape {x.shape[1:]}."
            )
        # Distances from a common centre: expanding the square around it loses fewer digits.
        a, b = x.reshape(len(x), -1), means.reshape(len(means), -1)
        centre = jax.lax.stop_gradient(jnp.mean(a, axis=0))
        a, b = a - centre, b - centre
        squares = jnp.sum(a**2, axis=1)[:, None] + jnp.sum(b**2, axis=1) - 2 * a @ b.T
        return -squares / (2 * self.noise**2) - self.log_constant

    def prepared(self) -> Self:
        """With a generator whose weights are rearranged once."""
        return eqx.tree_at(lambda m: m.generator, self, self.generator.prepared())

    def trainable(self) -> Self:
        """With a generator that follows its parameters again."""
        return eqx.tree_at(lambda m: m.generator, self, self.generator.trainable())

    def posterior(
        self, x: Any, key: PRNGKeyArray, *, proposals: int = 1024, steps: int = 100
    ) -> Float[Array, "n ..."]:
        r"""Return latents [n, *prior.shape] of examples `x`: one draw from $p(z\mid x)$ for each.

        **Arguments:** `x` are examples as the model makes them, or bytes; a chain starts at one of
        `proposals` prior draws that explains its example and makes `steps` Metropolis-adjusted
        Langevin steps. A VAE asks its encoder. `decode` makes reconstructions of them.
        """
        from .interpret.inference import infer

        return jnp.asarray(infer(self, x, key, proposals=proposals, steps=steps).latents)

    def reconstruct(
        self,
        x: Float[Array, "n ..."],
        key: PRNGKeyArray,
        *,
        steps: int = 40,
        step_size: float = 0.01,
    ) -> Float[Array, "n ..."]:
        """What the latents of `x` decode to, found by `steps` Langevin steps from the prior."""
        from .posterior import Langevin

        x = self.checked_data(x)
        start, chain = jax.random.split(key)
        z, _ = eqx.filter_jit(Langevin(steps, step_size).sample)(
            self, x, self.prior.sample(start, len(x)), chain
        )
        return self.decode(z)


class KAEM(LatentModel):
    """A Kolmogorov-Arnold energy model."""

    prior: AbstractPrior

    @compiled(_check_quantiles)
    def generate(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Steer: quantiles `u` in [0, 1], one for each latent, to data points."""
        z = self.prior.inverse_cdf(u)
        x = self.decode(z.reshape(-1, *self.prior.shape))
        return x.reshape(*z.shape[: -len(self.prior.shape)], *self.data_shape)

    def prepared(self, tolerance: float = 2e-7, cells: int | None = None) -> Self:
        """With tables as fine as `tolerance` asks, and the generator's weights, made once.

        `cells` is their number where somebody has found it before.
        """
        prior = self.prior.uncache()
        if cells is not None:
            prior = prior.with_cells(cells)
        elif prior.inverse_transform == "exact":
            prior = prior.refined(tolerance)
        return eqx.tree_at(lambda m: m.prior, super().prepared(), prior.cache())

    def trainable(self) -> Self:
        """Without cached tables: energies are about to change."""
        return eqx.tree_at(lambda m: m.prior, super().trainable(), self.prior.uncache())

    def with_symbolic_prior(
        self, forms: "Fits | str | PathLike[str]", only_good: bool = True
    ) -> Self:
        """This model with closed forms for its prior's densities, ready to sample.

        `forms` are what `kaem.interpret.closed_forms.fit_prior` found, or the path of a `symbolic.json`.
        A coordinate without a good closed form is an error if `only_good`; else its best form is used.
        """
        from .interpret.closed_forms import Fits, read_fits, symbolic_prior

        fits = forms if isinstance(forms, Fits) else read_fits(forms)
        prior = symbolic_prior(self.prior, fits, only_good)
        return eqx.tree_at(lambda m: m.prior, self, prior).prepared()
