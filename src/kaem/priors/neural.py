r"""The neural latent energy model: $p(z) \propto e^{f(z)}\,\mathcal{N}(z; 0, I)$ with $f$ a network.

Nothing about this prior is a one-dimensional integral, so what `kaem.priors` does by quadrature
is done here by Langevin chains: 60 steps for every sample, and 60 more for every update, whose
ends stand in for the prior in the negative phase of contrastive divergence.
"""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..initialise import as_array, host_rng
from ..parallel import of_batch
from ..posterior.kernels import ULA, Evaluation, State
from ._latent import Draw, LatentPrior, LogDensity, Start
from .normal import far, normal_potential


class NeuralPrior(LatentPrior):
    """A standard normal tilted by a network of swish layers, sampled by Langevin chains."""

    weights: tuple[Float[Array, "I O"], ...]
    biases: tuple[Float[Array, " O"], ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    step_size: float = eqx.field(static=True)
    noise_scale: float = eqx.field(static=True)

    def __init__(
        self,
        coordinates: int,
        *,
        key: PRNGKeyArray,
        widths: tuple[int, ...] = (200, 200),
        steps: int = 60,
        step_size: float = 0.16,
        noise_scale: float = 1.0,
    ) -> None:
        """Make a new prior: `widths` are the hidden layers; `steps` of `step_size` draw a sample."""
        if not widths or min(widths) < 1:
            raise ValueError(f"an energy network needs positive widths, got {widths}.")
        rng = host_rng(key)
        sizes = list(pairwise((coordinates, *widths, 1)))
        self.weights = tuple(as_array(rng.normal(0, i**-0.5, (i, o))) for i, o in sizes)
        self.biases = tuple(as_array(np.zeros(o)) for _, o in sizes)
        self.shape = (coordinates,)
        self.steps, self.step_size, self.noise_scale = steps, step_size, noise_scale

    def __check_init__(self) -> None:
        steps, step_size, noise_scale = self.steps, self.step_size, self.noise_scale
        if not 1 <= steps < 2**31 or not step_size > 0 or not noise_scale >= 0:
            raise ValueError(
                "Langevin sampling of the prior needs steps >= 1, a positive step_size and a "
                f"noise_scale of at least 0, got {steps}, {step_size} and {noise_scale}."
            )

    def tilt(self, z: Float[Array, "n Q"]) -> Float[Array, " n"]:
        """Return $f(z)$ [n], the negative energy."""
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            z = jax.nn.swish(z @ weight + bias)
        return (z @ last[0] + last[1])[:, 0]

    def potential(self, z: Float[Array, "n Q"]) -> tuple[Float[Array, " n"], Float[Array, "n Q"]]:
        r"""Return $\log p(z)$ [n] without its constant, and its gradient [n, Q]."""
        tilt, pull = jax.vjp(self.tilt, z)
        (slope,) = pull(jnp.ones_like(tilt))
        return tilt - 0.5 * jnp.sum(z**2, axis=1), slope - z

    def normal(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
        """Draw where chains start, [n, Q]."""
        return of_batch(lambda shape: jax.random.normal(key, shape), (n, *self.shape))

    @eqx.filter_jit
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n Q"]:
        """Return the ends of `n` chains."""
        start, chain = jax.random.split(key)
        kernel = ULA(noise_scale=self.noise_scale)

        def evaluate(z: Float[Array, "n Q"]) -> Evaluation:
            log_p, score = self.potential(z)
            return Evaluation(jnp.zeros_like(log_p), jnp.zeros_like(score), log_p, score)

        def step(i: Array, state: State) -> State:
            state = state._replace(here=evaluate(state.z))
            one, eta = jnp.ones(()), jnp.float32(self.step_size)
            moved, _ = kernel.move(evaluate, state, one, eta, jax.random.fold_in(chain, i))
            return moved

        state = kernel.init(evaluate, self.normal(start, n))
        return jax.lax.fori_loop(0, self.steps, step, state).z

    def for_chains(self) -> tuple[LogDensity, Draw]:
        return self.potential, self.normal

    def start(self) -> Start:
        """Return the normal that the network tilts: only that can be drawn exactly."""
        return Start(normal_potential, self.normal, self.tilt)

    def mean_log_prob(self, z: Float[Array, "n Q"], key: PRNGKeyArray) -> Float[Array, ""]:
        r"""Return $\frac1n\sum f(z_n)$ minus the same over samples of the prior: contrastive divergence.

        Its gradient estimates that of the mean log-density; its value is not one. It is NaN where
        a good part of the prior's own chains is lost.
        """
        negative = jax.lax.stop_gradient(self).sample(key, len(z))
        value = jnp.mean(self.tilt(z)) - jnp.mean(self.tilt(negative))
        return jnp.where(self.lost(negative) > 0.1, jnp.nan, value)

    @property
    def exact(self) -> bool:
        """Its normaliser is not known, and chains only come close to its draws."""
        return False

    @property
    def independent(self) -> bool:
        """Return False: the network ties all coordinates together."""
        return False

    def lost(self, z: Float[Array, "..."]) -> Float[Array, ""]:
        return far(z)
