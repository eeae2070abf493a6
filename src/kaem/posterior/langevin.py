r"""Learning from Langevin samples of the posterior, of one temperature or of a ladder of them.

An update draws latents for its batch, then differentiates the criterion at those latents. Chains
start from the prior at every update, as in the paper, or are *persistent*: every training
example keeps its last latents, so that a few steps for each update suffice.

In the loop the generator's weights are rearranged once, and the prior is a table
(`AbstractPrior.potential`): a step costs one forward and one backward pass of the generator.
"""

from math import log, pi, prod
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..objectives import (
    balanced,
    checked_ladder,
    cosine_exponent,
    maximum_likelihood,
    power_law,
    thermodynamic,
)
from ..priors import Potential
from .samplers import SAMPLERS, AbstractSampler, Evaluate, Evaluation
from .tempering import Population

if TYPE_CHECKING:
    from ..model import KAEM

Memory = dict[str, Array]
Schedule = Literal["cosine", "power", "balanced", "fixed"]
_LOST = 0.1  # share of lost latents at which training stops
_RATE = 0.02  # of the running rejection rates, and of the ladder that follows them


def log_likelihood(model: "KAEM", x: Array, means: Array) -> Float[Array, "*n"]:
    r"""$\log\mathcal{N}(x; \tilde x, \sigma^2 I)$, example by example."""
    axes = tuple(range(means.ndim - len(model.data_shape), means.ndim))
    squares = jnp.sum((x - means) ** 2, axis=axes)
    constant = prod(model.data_shape) / 2 * log(2 * pi * model.noise**2)
    return -squares / (2 * model.noise**2) - constant


def evaluator(model: "KAEM", x: Float[Array, "B ..."], potential: Potential) -> Evaluate:
    """`evaluate` of a batch, for latents [..., B, *event] of any number of chains for each example."""
    residuals = model.generator.residuals(x)
    event = model.prior.shape
    precision = 1 / model.noise**2
    constant = prod(model.data_shape) / 2 * log(2 * pi * model.noise**2)

    def evaluate(
        z: Float[Array, "*n B event"], key: PRNGKeyArray | None = None, share: float = 1.0
    ) -> Evaluation:
        """With a `key`, the likelihood's gradient is estimated from a `share` of the pixels."""
        batch = z.shape[: z.ndim - len(event)]
        if len(batch) > 1:  # one batch after the other: all at once would leave the caches
            each = z.reshape(-1, *z.shape[len(batch) - 1 :])
            found = jax.lax.map(lambda z: evaluate(z, key, share), each)
            return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[2:]), found)
        gaps, pull = jax.vjp(residuals, z)
        squares = jnp.sum(jnp.stack([_squares(gap) for gap in gaps]), axis=0)
        if key is not None:
            keys = jax.random.split(key, len(gaps))
            gaps = tuple(
                jnp.where(jax.random.bernoulli(k, share, gap.shape), gap / share, 0)
                for k, gap in zip(keys, gaps, strict=True)
            )
        (gradient,) = pull(tuple(-precision * gap for gap in gaps))
        log_prior, prior_score = potential(z)
        return Evaluation(
            -0.5 * precision * squares - constant,
            gradient,
            jnp.sum(log_prior, axis=tuple(range(1, z.ndim))),
            prior_score,
        )

    return evaluate


def _squares(gap: Float[Array, "... n X"]) -> Float[Array, " n"]:
    return jnp.sum(gap**2, axis=tuple(i for i in range(gap.ndim) if i != gap.ndim - 2))


class Langevin(eqx.Module):
    """Maximum likelihood with Langevin samples of the posterior (eq. learning-grad)."""

    steps: int = eqx.field(static=True, default=40)
    step_size: float = eqx.field(static=True, default=0.01)
    kind: str = eqx.field(static=True, default="ula")
    persistent: bool = eqx.field(static=True, default=False)
    share: float = eqx.field(static=True, default=1.0)  # of the pixels, for SGLD

    def __check_init__(self) -> None:
        if self.kind not in SAMPLERS:
            raise ValueError(f"unknown sampler {self.kind!r}; choose one of {', '.join(SAMPLERS)}.")
        if self.steps < 1 or not self.step_size > 0 or not 0 < self.share <= 1:
            raise ValueError(
                "Langevin sampling needs steps >= 1, a positive step_size and a share in (0, 1], "
                f"got {self.steps}, {self.step_size} and {self.share}."
            )

        if self.share < 1 and self.kind != "sgld":
            raise ValueError(
                f"a share of the pixels is for kind 'sgld' only, got {self.share} for {self.kind!r}; "
                "leave it at 1, or choose 'sgld'."
            )

    @property
    def sampler(self) -> AbstractSampler:
        if self.kind == "sgld":
            return SAMPLERS["sgld"](self.step_size, share=self.share)  # type: ignore[call-arg]
        return SAMPLERS[self.kind](self.step_size)

    @property
    def data_parallel(self) -> bool:
        """Whether a batch may be split over devices."""
        return True

    @property
    def info_names(self) -> tuple[str, ...]:
        names = ("log_likelihood", "log_prior", "reconstruction")
        return (*names, "acceptance", "drift", "outside", "lost")

    def memory(self, model: "KAEM", examples: int, key: PRNGKeyArray) -> Memory:
        """What is kept between updates: with persistent chains, latents of every example."""
        return {"chains": model.prior.sample(key, examples)} if self.persistent else {}

    def sample(
        self, model: "KAEM", x: Float[Array, "B ..."], z: Float[Array, "B ..."], key: Any
    ) -> tuple[Float[Array, "B ..."], dict[str, Array]]:
        """Latents after `steps` steps from `z`, and means of what happened."""
        evaluate = evaluator(model, x, model.prior.uncache().potential())
        return self._run(evaluate, z, key)

    def _run(self, evaluate: Evaluate, z: Array, key: PRNGKeyArray) -> tuple[Array, Any]:
        sampler = self.sampler

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            state, info = sampler.step(evaluate, state, 1.0, jax.random.fold_in(key, i))
            return state, jax.tree.map(jnp.add, total, info._asdict())

        zero = {"acceptance": jnp.zeros(()), "drift": jnp.zeros(())}
        start = (sampler.init(evaluate, z), zero)
        state, total = jax.lax.fori_loop(0, self.steps, step, start)
        return state.z, jax.tree.map(lambda value: value / self.steps, total)

    def objective(
        self,
        model: "KAEM",
        x: Float[Array, "B ..."],
        key: PRNGKeyArray,
        memory: Memory,
        progress: Any,
    ) -> tuple[Array, tuple[dict[str, Array], Memory]]:
        """The criterion at fresh posterior samples, what was seen, and what to keep.

        `memory` holds the chains of this batch's examples; `progress` is the share of updates done.
        """
        del progress
        start_key, chain_key, noise_key = jax.random.split(key, 3)
        fixed = jax.lax.stop_gradient(model)
        prior = fixed.prior.uncache()
        log_density = prior.log_density_on_nodes()
        if self.persistent:
            z = memory["chains"]
        else:
            u = jax.random.uniform(start_key, (*prior.shape, len(x)))
            z = jnp.moveaxis(prior.build_table(log_density).inverse_cdf(u), -1, 0)
        z, info = self._run(evaluator(fixed, x, prior.potential(log_density)), z, chain_key)
        z = jax.lax.stop_gradient(z)
        if self.persistent:
            memory = memory | {"chains": z}

        each = log_likelihood(model, x, model.decode(z, noise_key))
        value, likelihood, log_prior = maximum_likelihood(model, each, z)
        info |= {
            "log_likelihood": likelihood,
            "log_prior": log_prior,
            "reconstruction": _squared_error(model, likelihood),
            "outside": prior.outside(z),
            "lost": prior.lost(z),
        }
        return _unless_diverged(value, info), (jax.lax.stop_gradient(info), memory)

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """What a chain that went astray needs, or None."""
        return _diagnosis(self.step_size, info)


class Thermodynamic(eqx.Module):
    """The thermodynamic criterion with population sampling of all power posteriors (eq. SS-KAEM)."""

    temperatures: int = eqx.field(static=True, default=10)  # N_t
    steps: int = eqx.field(static=True, default=40)
    step_size: float = eqx.field(static=True, default=0.01)
    kind: str = eqx.field(static=True, default="ula")
    persistent: bool = eqx.field(static=True, default=False)
    schedule: Schedule = eqx.field(static=True, default="cosine")
    p_start: float = eqx.field(static=True, default=2.0)
    p_end: float = eqx.field(static=True, default=0.5)
    cycles: int = eqx.field(static=True, default=0)
    ladder: tuple[float, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.kind not in ("ula", "mala"):
            raise ValueError(f"a population moves by 'ula' or 'mala', got {self.kind!r}.")
        if self.steps < 1 or not self.step_size > 0:
            raise ValueError(
                "thermodynamic sampling needs steps >= 1 and a positive step_size, "
                f"got {self.steps} and {self.step_size}."
            )
        if self.temperatures < 1:
            raise ValueError(
                f"thermodynamic training needs at least one power posterior (temperatures >= 1), got "
                f"{self.temperatures}; for plain maximum likelihood use kind 'ula'."
            )
        if self.schedule not in ("cosine", "power", "balanced", "fixed"):
            raise ValueError(
                f"schedule must be 'cosine', 'power', 'balanced' or 'fixed', got {self.schedule!r}."
            )
        if self.p_start <= 0 or self.p_end <= 0 or self.cycles < 0:
            raise ValueError(
                "exponents must be positive and cycles not negative, got "
                f"p_start = {self.p_start}, p_end = {self.p_end}, cycles = {self.cycles}."
            )
        if (self.ladder is None) == (self.schedule == "fixed"):
            raise ValueError(
                "schedule 'fixed' needs a ladder, such as [0, 0.1, 0.4, 1]; got none."
                if self.ladder is None
                else f"a ladder is for schedule 'fixed', but the schedule is {self.schedule!r}; set "
                "schedule to 'fixed', or leave the ladder out."
            )
        if self.ladder is not None and len(checked_ladder(self.ladder)) != self.temperatures + 1:
            raise ValueError(
                f"a ladder for temperatures = {self.temperatures} has "
                f"{self.temperatures + 1} rungs with 0 and 1, got {len(self.ladder)}."
            )

    @property
    def data_parallel(self) -> bool:
        """Whether a batch may be split over devices."""
        return True

    @property
    def info_names(self) -> tuple[str, ...]:
        pairs = tuple(f"swap_{k}" for k in range(self.temperatures))
        rungs = tuple(f"t_{k}" for k in range(1, self.temperatures))
        names = ("log_likelihood", "log_prior", "log_marginal", "reconstruction")
        return (*names, "acceptance", "drift", "outside", "lost", "round_trips", *pairs, *rungs)

    def memory(self, model: "KAEM", examples: int, key: PRNGKeyArray) -> Memory:
        """Persistent chains at every temperature; for a balanced ladder, its rungs and rates."""
        kept: Memory = {}
        if self.persistent:
            z = model.prior.sample(key, examples * self.temperatures)
            kept["chains"] = z.reshape(examples, self.temperatures, *model.prior.shape)
        if self.schedule == "balanced":
            kept["ladder"] = power_law(self.temperatures, self.p_start).astype(jnp.float32)
            kept["rejection"] = jnp.full(self.temperatures, 0.5, jnp.float32)
        return kept

    def rungs(self, memory: Memory, progress: Array | float) -> Float[Array, " N+1"]:
        """The ladder of one update."""
        match self.schedule:
            case "balanced":
                return memory["ladder"]
            case "fixed":
                return jnp.asarray(self.ladder)
            case "power":
                return power_law(self.temperatures, self.p_start)
        p = cosine_exponent(progress, self.p_start, self.p_end, self.cycles)
        return power_law(self.temperatures, p)

    def _run(
        self, evaluate: Evaluate, z: Array, t: Array, draw: Any, key: PRNGKeyArray
    ) -> tuple[Array, dict[str, Array]]:
        population = Population(SAMPLERS[self.kind](self.step_size))

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            state, info = population.step(evaluate, state, t, jax.random.fold_in(key, i), draw)
            return state, jax.tree.map(jnp.add, total, info._asdict())

        none = {name: jnp.zeros(()) for name in ("acceptance", "drift", "trips")}
        none |= {"swapped": jnp.zeros(self.temperatures)}
        # Even or odd pairs first, at random: short chains then come to try all pairs.
        start_key, key = jax.random.split(key)
        parity = jax.random.bernoulli(start_key).astype(jnp.int32)
        start = (population.init(evaluate, z, parity), none)
        state, total = jax.lax.fori_loop(0, self.steps, step, start)
        return state.chains.z, total

    def objective(
        self,
        model: "KAEM",
        x: Float[Array, "B ..."],
        key: PRNGKeyArray,
        memory: Memory,
        progress: Any,
    ) -> tuple[Array, tuple[dict[str, Array], Memory]]:
        """The criterion at fresh samples of all power posteriors, what was seen, and what to keep."""
        start_key, chain_key, bottom_key, noise_key = jax.random.split(key, 4)
        fixed = jax.lax.stop_gradient(model)
        prior = fixed.prior.uncache()
        log_density = prior.log_density_on_nodes()
        table = prior.build_table(log_density)

        def draw(key: PRNGKeyArray, *more: int) -> Array:
            number = prod(more) * len(x)
            z = table.inverse_cdf(jax.random.uniform(key, (*prior.shape, number)))
            return jnp.moveaxis(z, -1, 0).reshape(*more, len(x), *prior.shape)

        t = self.rungs(memory, progress)
        if self.persistent:
            z = jnp.moveaxis(memory["chains"], 1, 0)
        else:
            z = draw(start_key, self.temperatures)
        evaluate = evaluator(fixed, x, prior.potential(log_density))
        z, total = self._run(evaluate, z, t, draw, chain_key)
        z = jax.lax.stop_gradient(z)
        if self.persistent:
            memory = memory | {"chains": jnp.moveaxis(z, 0, 1)}
        rates = total["swapped"] / (self.steps / 2)  # each pair is due at every second step
        if self.schedule == "balanced":
            rejection = memory["rejection"] + _RATE * (1 - rates - memory["rejection"])
            rejection = jnp.clip(rejection, 0, 1)
            ladder = t + _RATE * (balanced(t, rejection) - t)
            memory = memory | {"rejection": rejection, "ladder": ladder}

        levels = jnp.concatenate([draw(bottom_key)[None], z])
        # Level by level, and recomputed for the gradient: memory is that of one batch.
        decode = jax.checkpoint(lambda z, key: log_likelihood(model, x, model.decode(z, key)))
        keys = jax.random.split(noise_key, len(levels))
        each = jax.lax.map(lambda level: decode(*level), (levels, keys))
        value, integral, log_prior = thermodynamic(model, each, z[-1], t)
        top = jnp.mean(each[-1])
        info = {
            "log_likelihood": top,
            "log_prior": log_prior,
            "log_marginal": integral,
            "reconstruction": _squared_error(model, top),
            "acceptance": total["acceptance"] / self.steps,
            "drift": total["drift"] / self.steps,
            "outside": prior.outside(z),
            "lost": prior.lost(z),
            "round_trips": total["trips"],
        }
        info |= {f"swap_{k}": rates[k] for k in range(self.temperatures)}
        info |= {f"t_{k}": t[k] for k in range(1, self.temperatures)}
        return _unless_diverged(value, info), (jax.lax.stop_gradient(info), memory)

    def diagnosis(self, info: dict[str, float]) -> str | None:
        """What a chain that went astray needs, or None."""
        return _diagnosis(self.step_size, info)


def _squared_error(model: "KAEM", likelihood: Array) -> Array:
    """The mean squared error of a pixel that a log-likelihood amounts to."""
    size = prod(model.data_shape)
    constant = size / 2 * log(2 * pi * model.noise**2)
    return -2 * model.noise**2 / size * (likelihood + constant)


def _unless_diverged(value: Array, info: dict[str, Array]) -> Array:
    """`value`, or NaN where a good part of the chains is lost."""
    return jnp.where(info["lost"] > _LOST, jnp.nan, value)


def _diagnosis(step_size: float, info: dict[str, float]) -> str | None:
    # An average over devices: one of them may have lost its chains alone.
    if info["lost"] > _LOST / jax.device_count():
        return (
            f"the Langevin chains diverged: {info['lost']:.0%} of the latents are farther off than "
            f"three times the prior's domain. posterior.step_size = {step_size:g} is too large for "
            f"this posterior; try `--set posterior.step_size={min(step_size / 10, 0.01):g}`"
        )
    return None
