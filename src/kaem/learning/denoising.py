"""Learning a diffusion model: the mean squared error of the predicted noise."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..parallel import of_batch
from ._learner import AbstractLearner, Memory, Objective, number

if TYPE_CHECKING:
    from ..baselines.diffusion import DDPM, Schedule


class Denoising(AbstractLearner):
    """Learning a DDPM: the mean squared error of the predicted noise at times drawn uniformly."""

    def check(self, model: Any) -> None:
        self._needs(model, hasattr(model, "network"), "a network that predicts noise")

    @property
    def info_names(self) -> tuple[str, ...]:
        return ("denoising_error",)

    def objective(
        self, model: "DDPM", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        time_key, noise_key = jax.random.split(key)
        t = of_batch(
            lambda shape: jax.random.randint(time_key, shape, 0, model.timesteps), (len(x),)
        )
        noise = of_batch(lambda shape: jax.random.normal(noise_key, shape), x.shape)
        predicted = model.network.denoiser()(diffuse(model.schedule(), 2 * x - 1, t, noise), t)
        loss = jnp.mean((noise - predicted) ** 2)
        return -loss, ({"denoising_error": jax.lax.stop_gradient(loss)}, memory)

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        return [("squared error of the noise", number(last, "denoising_error", ".4f"))]


def diffuse(
    schedule: "Schedule", x: Float[Array, "n ..."], t: Int[Array, " n"], noise: Array
) -> Float[Array, "n ..."]:
    r"""Return $x_t = \sqrt{\bar\alpha_t}\,x_0 + \sqrt{1-\bar\alpha_t}\,\epsilon$, row by row."""
    rows = (len(x), *(1,) * (x.ndim - 1))
    signal = jnp.asarray(np.sqrt(schedule.alpha_bar), jnp.float32)[t].reshape(rows)
    scale = jnp.asarray(np.sqrt(1 - schedule.alpha_bar), jnp.float32)[t].reshape(rows)
    return signal * x + scale * noise
