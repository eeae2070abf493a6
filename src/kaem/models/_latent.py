r"""A latent model: $z \sim p(z)$, $\tilde x = G(z, \sigma_\varepsilon\varepsilon)$, $p(x \mid z) = \mathcal{N}(x; \tilde x, \sigma^2 I)$.

A prior, a generator and observation noise, and for images perhaps a lens $B$ (`kaem.observation`), with
which the likelihood's mean is $B\tilde x$.
"""

from math import isfinite, log, pi, prod
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..generators import AbstractGenerator, Half
from ..learning import Langevin
from ..methods import check_count, compiled
from ..observation import Lens
from ..parallel import of_batch
from ..posterior.guess import Bent, Normal
from ..posterior.inference import Inference, infer
from ._model import AbstractModel, as_float

_CHUNK = 200  # examples encoded at once
_ASKED = ("shape", "sample", "for_chains", "mean_log_prob", "lost")  # of any prior


def _is_number(value: Any) -> bool:
    """Whether a noise is one: also an array of one number, as one that was learned is."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float | np.floating) or (
        eqx.is_array(value) and value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)
    )


def _check_latents(model: "LatentModel", z: Any, key: Any = None) -> None:
    shape, own = np.shape(z), tuple(model.prior.shape)
    if shape[1:] != own:
        one = "; for one latent give z[None]" if shape == own else ""
        raise ValueError(
            f"decode takes latents of shape (n, {', '.join(map(str, own))}), as the prior has them, got "
            f"{shape}{one}."
        )


@eqx.filter_jit
def _redrawn(
    model: "LatentModel", x: Float[Array, "n ..."], key: PRNGKeyArray
) -> Float[Array, "n ..."]:
    guess = model.encoded(x)
    assert guess is not None
    return model.decode(guess.draw(key))


class LatentModel(AbstractModel):
    """A prior over latents, a generator, and Gaussian observation noise."""

    prior: eqx.AbstractVar[Any]  # a `kaem.priors.LatentPrior`
    generator: eqx.AbstractVar[AbstractGenerator]
    noise: eqx.AbstractVar[float]  # sigma, the likelihood's scale
    generator_noise: eqx.AbstractVar[float]  # sigma_epsilon

    def __check_init__(self) -> None:
        if isinstance(self.noise, jax.core.Tracer):  # of a model made within compiled code
            return
        noises = (self.noise, self.generator_noise)
        numbers = all(_is_number(n) and isfinite(n) for n in noises)
        if not numbers or self.noise <= 0 or self.generator_noise < 0:
            raise ValueError(
                "noise must be positive and generator_noise non-negative, both finite numbers, got "
                f"{self.noise!r} and {self.generator_noise!r}."
            )
        lacking = [name for name in _ASKED if not hasattr(self.prior, name)]
        if lacking:
            raise ValueError(
                f"the prior of a latent model has {', '.join(_ASKED)}; a {type(self.prior).__name__} lacks "
                f"{', '.join(lacking)}. Derive it from kaem.priors.LatentPrior, which says what each is."
            )
        takes = self.generator.coordinates
        if takes is not None and takes != self.prior.shape[0]:
            raise ValueError(
                f"the generator takes {takes} latent coordinates, but the prior has "
                f"{self.prior.shape[0]}; build both for the same number."
            )
        if takes is None:
            self._check_generator()
        if self._lens is not None and tuple(self._lens.data_shape) != tuple(self.data_shape):
            raise ValueError(
                f"the lens is for data of shape {self._lens.data_shape}, but the generator makes "
                f"{self.data_shape}; build both for the same shape."
            )
        if getattr(self, "encoder", None) is not None:
            self._check_encoder(self.encoder)  # type: ignore[attr-defined]  # not all have one

    def _check_encoder(self, encoder: Any) -> None:
        """Check that examples of this model's shape get a mean and a log-variance of every latent."""
        wanted = (2, prod(self.prior.shape))
        data = jax.ShapeDtypeStruct((2, *self.data_shape), jnp.float32)
        try:
            found = tuple(part.shape for part in eqx.filter_eval_shape(encoder, data))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"a {type(encoder).__name__} cannot be called with data of shape {data.shape}, as the "
                f"generator makes them: {error}"
            ) from error
        if found != (wanted, wanted):
            raise ValueError(
                f"a {type(encoder).__name__} makes {' and '.join(map(str, found))} of two examples, "
                f"expected means and log-variances of shape {wanted}: the prior has latents of shape "
                f"{self.prior.shape}."
            )

    def _check_generator(self) -> None:
        """Check that a latent of the prior makes one example of the shape that the generator states."""
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

    def with_latents(self, purpose: str) -> "LatentModel":
        return self

    def with_quantiles(self, purpose: str) -> "LatentModel":
        return self if self.prior.independent else super().with_quantiles(purpose)

    @compiled(_check_latents)
    def decode(
        self, z: Float[Array, "n ..."], key: PRNGKeyArray | None = None
    ) -> Float[Array, "n ..."]:
        """Return data [n, *data_shape] of latents z [n, *prior.shape]; with a key, the generator's own noise is added."""
        decode = self.generator.decoder()
        if key is None or self.generator_noise == 0:
            return decode(z)
        size = (z.shape[0], prod(self.data_shape))
        noise = of_batch(lambda shape: jax.random.normal(key, shape), size)
        return decode(z, self.generator_noise * noise)

    @compiled(check_count)
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """Draw `n` new data points [n, *data_shape]: draws from the prior, decoded."""
        return self.decode(self.prior.sample(key, n))

    def checked_data(self, x: Any) -> Float[Array, "n ..."]:
        """Return examples as the model makes them, bytes scaled to [0, 1], or say what is wrong."""
        shape, own = np.shape(x), self.data_shape
        if own[-1:] == (1,) and shape[1:] == own[:-1]:
            shape = (*shape, 1)  # grey images often come without channels
        if shape[1:] != own or shape[0] == 0:
            raise ValueError(
                f"the model generates data of shape {own}, got examples of shape {shape}; give at "
                "least one, along the first axis."
            )
        if not isinstance(x, jax.core.Tracer) and (given := np.asarray(x)).dtype != np.uint8:
            low, high = given.min(), given.max()
            if not np.isfinite(low + high):
                raise ValueError(
                    "some examples hold NaN or infinite values; remove or impute them."
                )
            if self.output == "sigmoid" and not (low >= 0 and high <= 1):
                raise ValueError(
                    f"the model makes values in [0, 1], got examples from {low:.4g} to {high:.4g}; "
                    "give bytes (uint8), or divide by 255."
                )
        return as_float(x).reshape(shape)

    @compiled(check_count)
    def sample_with_noise(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        r"""Draw `n` times from $p(x)$: as `sample` does, seen through a lens if there is one, each with noise $\mathcal{N}(0, \sigma^2 I)$."""
        means = self.seen(self.sample(key, n))
        # A number that no prior folds in, nor splits as many keys: `fold_in(key, 1)` is one of those.
        return means + self.noise * jax.random.normal(
            jax.random.fold_in(key, 2**32 - 1), means.shape
        )

    def seen(self, drawn: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the likelihood's means for what the generator drew: that itself, or through a lens."""
        return drawn if self._lens is None else self._lens(drawn)

    @property
    def _lens(self) -> Lens | None:
        return getattr(self, "lens", None)  # which not every latent model has

    def residuals(self, x: Float[Array, "B ..."]) -> Any:
        r"""Return a function of latents to what data are off their means by; see `AbstractGenerator.residuals`."""
        if self._lens is None:
            return self.generator.residuals(x)
        decode = self.generator.decoder()

        def residual(z: Float[Array, "n ..."]) -> tuple[Float[Array, "n X"], ...]:
            means = self.seen(decode(z))
            return ((x - means.reshape(-1, *x.shape)).reshape(len(means), -1),)

        return residual

    def focused(self, x: Float[Array, "n ..."], key: PRNGKeyArray) -> Self:
        """Return the model with its lens adjusted to examples, by draws of the encoder for them."""
        if self._lens is None or self.encoded(x[:1]) is None:
            return self
        parts = [
            np.asarray(_redrawn(self, x[i : i + _CHUNK], jax.random.fold_in(key, i)))
            for i in range(0, len(x), _CHUNK)
        ]
        lens = self._lens.focused(np.asarray(as_float(x)), np.concatenate(parts))
        return eqx.tree_at(lambda model: model.lens, self, lens)

    @property
    def log_constant(self) -> Any:
        r"""Return $\frac D2\log 2\pi\sigma^2$ of the likelihood's D dimensions."""
        half = prod(self.data_shape) / 2
        if isinstance(self.noise, jax.core.Tracer):  # in a compiled update, where it is an argument
            return half * (log(2 * pi) + 2 * jnp.log(self.noise))
        return half * log(2 * pi * self.noise**2)

    def log_likelihood(
        self, x: Float[Array, "..."], means: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        r"""Return $\log\mathcal{N}(x; \tilde x, \sigma^2 I)$ of what was drawn, `means`, example by example."""
        axes = tuple(range(means.ndim - len(self.data_shape), means.ndim))
        return (
            -jnp.sum((as_float(x) - self.seen(means)) ** 2, axis=axes) / (2 * self.noise**2)
            - self.log_constant
        )

    def squared_error(self, log_likelihood: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the mean squared error of a pixel that a log-likelihood amounts to."""
        size = prod(self.data_shape)
        return -2 * self.noise**2 / size * (log_likelihood + self.log_constant)

    def log_likelihood_matrix(
        self, x: Float[Array, "B ..."], means: Float[Array, "N ..."]
    ) -> Float[Array, "B N"]:
        r"""Return $\log\mathcal{N}(x_b; \tilde x_s, \sigma^2 I)$ for all pairs, as one matrix product."""
        if x.shape[1:] != self.data_shape:
            raise ValueError(
                f"the model generates data of shape {self.data_shape}, got examples of "
                f"shape {x.shape[1:]}."
            )
        # Distances from a common centre: expanding the square around it loses fewer digits.
        a, b = as_float(x).reshape(len(x), -1), self.seen(means).reshape(len(means), -1)
        centre = jax.lax.stop_gradient(jnp.mean(a, axis=0))
        a, b = a - centre, b - centre
        squares = jnp.sum(a**2, axis=1)[:, None] + jnp.sum(b**2, axis=1) - 2 * a @ b.T
        return -squares / (2 * self.noise**2) - self.log_constant

    def prepared(self) -> Self:
        """Return this model with what sampling can reuse computed once."""
        return self._with_parts(self.prior.prepared(), self.generator.prepared())

    def trainable(self) -> Self:
        """Return this model with parts that follow their parameters again."""
        return self._with_parts(self.prior.trainable(), self.generator.trainable())

    def halved(self) -> Self:
        """Return the same model with a generator that computes in bfloat16."""
        return eqx.tree_at(lambda m: m.generator, self, Half(self.generator))

    def _with_parts(self, prior: Any, generator: AbstractGenerator) -> Self:
        return eqx.tree_at(lambda m: (m.prior, m.generator), self, (prior, generator))

    def folded(self) -> Self:
        """Return the same model with independent latents, where a map that the generator can take in ties them."""
        return self

    def _unfolded(self, latents: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Return latents of what `folded` returns as latents of this model."""
        return latents

    def encoded(self, x: Float[Array, "n ..."]) -> Normal | Bent | None:
        """Return an approximation of the posteriors of examples, if the model has learned one."""
        return None

    def infer(
        self, x: Any, key: PRNGKeyArray, *, proposals: int = 1024, steps: int = 100, batch: int = 64
    ) -> Inference:
        r"""Return one draw from $p(z\mid x)$ for each example, and how well its chain moved.

        **Arguments:** `x` are examples [n, *data_shape] as the model makes them, or bytes; `proposals`
        is the number of prior draws that chains may start from, `steps` that of Metropolis-adjusted
        Langevin steps, `batch` the examples treated at once. A model with an encoder asks that.
        """
        found = infer(self, self.checked_data(x), key, proposals, steps, batch)
        return found._replace(latents=self._unfolded(found.latents))

    def posterior(
        self, x: Any, key: PRNGKeyArray, *, proposals: int = 1024, steps: int = 100
    ) -> Float[Array, "n ..."]:
        r"""Return latents [n, *prior.shape] of examples `x`: one draw from $p(z\mid x)$ for each.

        `decode` makes reconstructions of them. See `infer` for the arguments.
        """
        return jnp.asarray(self.infer(x, key, proposals=proposals, steps=steps).latents)

    def reconstruct(
        self, x: Any, key: PRNGKeyArray | None = None, *, steps: int = 40, step_size: float = 0.01
    ) -> Float[Array, "n ..."]:
        """Return what the latents of examples `x` [n, *data_shape] decode to.

        They are draws of the encoder where the model has one, without a key its means; else they are
        found by `steps` Langevin steps from the prior.
        """
        x, model = self.checked_data(x), self.folded()
        guess = model.encoded(x)
        if guess is not None:
            return model.decode(guess.mean if key is None else guess.draw(key))
        if key is None:
            raise ValueError(f"a {type(self).__name__} finds latents by chains: give a key, too.")
        start, chain = jax.random.split(key)
        begin = model.prior.sample(start, len(x))
        z, _ = Langevin(steps, step_size).sample(model, x, begin, chain)
        return model.decode(z)
