r"""Denoising diffusion: $q(x_t\mid x_0) = \mathcal{N}(\sqrt{\bar\alpha_t}\,x_0, (1-\bar\alpha_t)I)$, undone.

A network $\epsilon(x_t, t)$ learns to predict the noise, which amounts to a guess
$\hat x_0 = (x_t - \sqrt{1-\bar\alpha_t}\,\epsilon) / \sqrt{\bar\alpha_t}$. Every sampler here goes from
noise to data by steps
$$x_{t'} = a_t\,\hat x_0 + b_t\,x_t + s_t\,\xi,\qquad \xi\sim\mathcal{N}(0, I),$$
with $t'$ the time before $t$: a sampler is a table of $a, b, s$. Ancestral sampling has those of
$q(x_{t'}\mid x_t, \hat x_0)$; DDIM keeps the predicted noise, of which a share is drawn anew
for $\eta > 0$, and is ancestral sampling at $\eta = 1$.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..layers.unet import UNet
from ..learning import AbstractLearner, Denoising
from ..methods import modified
from ..models import AbstractModel
from ..parallel import SPLIT, WHOLE, batch_mesh

SAMPLERS = ("ancestral", "ddim")
_MOST = 2**20  # times of the schedule
_TOGETHER = 50  # images denoised at once; more would leave the caches and fill the memory

Denoiser = Callable[[Float[Array, "n ..."], Int[Array, ""]], Float[Array, "n ..."]]


class Schedule(NamedTuple):
    r"""The times a sampler visits, rising, with $\bar\alpha_t$ there, in double precision."""

    times: Int[np.ndarray, " S"]
    alpha_bar: Float[np.ndarray, " S"]


class Coefficients(NamedTuple):
    r"""What a step at each time does: $\hat x_0 = (x - \texttt{noise}\,\epsilon)/\texttt{signal}$, then the step."""

    times: Int[np.ndarray, " S"]
    signal: Float[np.ndarray, " S"]
    noise: Float[np.ndarray, " S"]
    of_guess: Float[np.ndarray, " S"]  # a
    of_x: Float[np.ndarray, " S"]  # b
    scale: Float[np.ndarray, " S"]  # s


def schedule(
    timesteps: int = 1000,
    beta_start: float = 1e-4,
    beta_end: float = 2e-2,
    steps: int | None = None,
) -> Schedule:
    r"""Return $\bar\alpha_t = \prod_{s\le t}(1-\beta_s)$ with $\beta$ linear, at `steps` evenly spaced times."""
    alpha_bar = np.cumprod(1 - np.linspace(beta_start, beta_end, timesteps))
    # From the end, so that a single step starts at pure noise.
    times = np.linspace(timesteps - 1, 0, steps or timesteps).round().astype(np.int32)[::-1]
    return Schedule(times, alpha_bar[times])


def ancestral_coefficients(schedule: Schedule) -> Coefficients:
    r"""Return mean and variance of $q(x_{t'}\mid x_t, x_0)$; the last step, to $x_0$ itself, has no noise."""
    after = schedule.alpha_bar
    before = np.concatenate([[1.0], after[:-1]])
    alpha = after / before
    beta = 1 - alpha
    return Coefficients(
        schedule.times,
        np.sqrt(after),
        np.sqrt(1 - after),
        np.sqrt(before) * beta / (1 - after),
        np.sqrt(alpha) * (1 - before) / (1 - after),
        np.sqrt(beta * (1 - before) / (1 - after)),
    )


def ddim_coefficients(schedule: Schedule, eta: float = 0.0) -> Coefficients:
    r"""Return the steps $x_{t'} = \sqrt{\bar\alpha_{t'}}\,\hat x_0 + \sqrt{1-\bar\alpha_{t'}-s_t^2}\,\hat\epsilon + s_t\xi$."""
    after = schedule.alpha_bar
    before = np.concatenate([[1.0], after[:-1]])
    scale = eta * np.sqrt((1 - before) / (1 - after) * (1 - after / before))
    kept = np.sqrt((1 - before - scale**2) / (1 - after))
    return Coefficients(
        schedule.times,
        np.sqrt(after),
        np.sqrt(1 - after),
        np.sqrt(before) - kept * np.sqrt(after),
        kept,
        scale,
    )


def ancestral(
    denoise: Denoiser,
    schedule: Schedule,
    x: Float[Array, "n ..."],
    keys: PRNGKeyArray,
    *,
    clip: bool = True,
) -> Float[Array, "n ..."]:
    """Make data of noise `x` [n, ...], with a key for each row; guesses are clipped to [-1, 1]."""
    return _run(denoise, ancestral_coefficients(schedule), x, keys, clip)


def ddim(
    denoise: Denoiser,
    schedule: Schedule,
    x: Float[Array, "n ..."],
    keys: PRNGKeyArray,
    *,
    eta: float = 0.0,
    clip: bool = True,
) -> Float[Array, "n ..."]:
    """Make data of noise by DDIM: with `eta` 0, a function of `x` alone."""
    return _run(denoise, ddim_coefficients(schedule, eta), x, keys, clip)


def _run(
    denoise: Denoiser, table: Coefficients, x: Array, keys: PRNGKeyArray, clip: bool
) -> Float[Array, "n ..."]:
    noisy = bool(table.scale.any())

    def step(x: Array, row: Any) -> tuple[Array, None]:
        guess = (x - row.noise * denoise(x, row.times)) / row.signal
        if clip:
            guess = jnp.clip(guess, -1, 1)
        x = row.of_guess * guess + row.of_x * x
        if noisy:
            x += row.scale * _normal(jax.vmap(jax.random.fold_in, (0, None))(keys, row.times), x)
        return x, None

    rows = Coefficients(table.times, *(c.astype(np.float32) for c in table[1:]))
    x, _ = jax.lax.scan(step, x, rows, reverse=True)
    return x


def _normal(keys: PRNGKeyArray, like: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    return jax.vmap(lambda key: jax.random.normal(key, like.shape[1:]))(keys)


class DDPM(AbstractModel):
    """A denoising diffusion model of images [H, W, C] with values in [0, 1]."""

    usual: ClassVar[dict[str, str]] = {"learner": "denoising"}
    about: ClassVar[str] = (
        "A denoising diffusion model in pixel space: every sample is a chain of denoising steps."
    )

    network: UNet
    shape: tuple[int, ...] = eqx.field(static=True)
    timesteps: int = eqx.field(static=True)
    beta_start: float = eqx.field(static=True)
    beta_end: float = eqx.field(static=True)
    sampler: str = eqx.field(static=True)
    sampling_steps: int | None = eqx.field(static=True)  # None: all of them
    eta: float = eqx.field(static=True)  # of DDIM

    def __init__(
        self,
        data_shape: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        channels: tuple[int, ...] = (32, 64, 128, 256),
        time_dim: int = 128,
        timesteps: int = 1000,
        beta_start: float = 1e-4,
        beta_end: float = 2e-2,
        sampler: str = "ancestral",
        sampling_steps: int | None = None,
        eta: float = 0.0,
    ) -> None:
        """Make a new model: `channels` are the UNet's, from full size down; the rest is the paper's schedule."""
        self.network = UNet(data_shape, key=key, channels=channels, time_dim=time_dim)
        self.shape = tuple(data_shape)
        self.timesteps, self.beta_start, self.beta_end = timesteps, beta_start, beta_end
        self.sampler, self.sampling_steps, self.eta = sampler, sampling_steps, eta

    def __check_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}.")
        ordered = 0 < self.beta_start <= self.beta_end < 1
        if not 1 <= self.timesteps <= _MOST or not ordered:
            raise ValueError(
                f"diffusion needs timesteps >= 1 and at most {_MOST}, and 0 < beta_start <= beta_end < 1, "
                f"got {self.timesteps}, {self.beta_start} and {self.beta_end}."
            )
        if self.sampling_steps is not None and not 1 <= self.sampling_steps <= self.timesteps:
            raise ValueError(
                f"sampling_steps must be between 1 and timesteps = {self.timesteps}, "
                f"got {self.sampling_steps}; leave it out to take all steps."
            )
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1], got {self.eta}.")

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def output(self) -> str:
        """Return `sigmoid`: values are in [0, 1]."""
        return "sigmoid"

    def usual_learner(self) -> AbstractLearner:
        return Denoising()

    def schedule(self, steps: int | None = None) -> Schedule:
        """Return the training schedule, or `steps` times of it."""
        return schedule(self.timesteps, self.beta_start, self.beta_end, steps)

    def with_sampling_steps(self, steps: int | None) -> Self:
        """Return the same model, sampled in `steps` steps; None is all of them."""
        model = modified(self, sampling_steps=steps)
        model.__check_init__()
        return model

    def faster(self, steps: int) -> tuple[Self, float]:
        """Return the model with `steps` sampling steps, which are all alike, if it has many more."""
        own = self.sampling_steps or self.timesteps
        if own <= 10 * steps:
            return self, 1.0
        return self.with_sampling_steps(steps), own / steps

    def facts(self) -> list[tuple[str, str]]:
        steps = self.sampling_steps or self.timesteps
        return [("sampler", f"{self.sampler}, {steps} steps of the UNet")]

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n ..."]:
        """Draw `n` new images [n, H, W, C], each with a key of its own."""
        arrays, static = eqx.partition(self, eqx.is_array)

        def images(arrays: Any, keys: PRNGKeyArray) -> Float[Array, "n ..."]:
            return eqx.combine(arrays, static)._denoised(keys)

        mesh = batch_mesh(n)
        if mesh is not None:
            specs: Any = {"in_specs": (WHOLE, SPLIT), "out_specs": SPLIT}
            images = jax.shard_map(images, mesh=mesh, **specs, check_vma=False)
        return images(arrays, jax.random.split(key, n))

    def _denoised(self, keys: PRNGKeyArray) -> Float[Array, "n ..."]:
        """An image from each key, some at a time."""
        denoise = self.network.denoiser()
        times = self.schedule(self.sampling_steps)

        def some(keys: PRNGKeyArray) -> Float[Array, "n ..."]:
            start = jnp.zeros((len(keys), *self.data_shape))
            # Steps fold in times below `timesteps`.
            noise = _normal(jax.vmap(jax.random.fold_in, (0, None))(keys, self.timesteps), start)
            if self.sampler == "ddim":
                x = ddim(denoise, times, noise, keys, eta=self.eta)
            else:
                x = ancestral(denoise, times, noise, keys)
            return jnp.clip((x + 1) / 2, 0, 1)

        n = len(keys)
        groups = -(-n // _TOGETHER)
        if groups == 1:
            return some(keys)
        size = -(-n // groups)
        padded = keys[jnp.arange(groups * size) % n].reshape(groups, size)
        return jax.lax.map(some, padded).reshape(-1, *self.data_shape)[:n]
