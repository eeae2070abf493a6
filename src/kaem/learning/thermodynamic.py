r"""Learning with a population of chains over a ladder of temperatures."""

from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..derived import frozen
from ..methods import ARGUMENT
from ..parallel import average
from ..posterior.evaluator import evaluator
from ..posterior.kernels import SAMPLERS, Evaluate, Info
from ..posterior.tempering import Population
from ._learner import Memory, Objective
from .chains import Chains
from .criteria import tempered, thermodynamic
from .schedules import balanced, checked_ladder, cosine_exponent, power_law

if TYPE_CHECKING:
    from ..models import LatentModel

Schedule = Literal["cosine", "power", "balanced", "fixed"]
Criterion = Literal["tempered", "thermodynamic"]
_CRITERIA = {"tempered": tempered, "thermodynamic": thermodynamic}
_RATE = 0.02  # of the running rejection rates, and of the ladder that follows them


class Thermodynamic(Chains):
    """Learning with population sampling of all power posteriors.

    With criterion `tempered` by maximum likelihood at $t = 1$; with `thermodynamic` by the paper's
    trapezoid (eq. SS-KAEM), whose gradient is biased. Both estimate $\\log p(x)$ by the trapezoid.
    """

    steps: int = eqx.field(static=True, default=40)  # N_local, moves of a chain for each update
    step_size: float = eqx.field(metadata=ARGUMENT, default=0.01)  # eta
    sampler: str = eqx.field(static=True, default="ula")  # the local moves of a chain
    persistent: bool = eqx.field(static=True, default=False)  # every example keeps its latents
    temperatures: int = eqx.field(static=True, default=10)  # N_t
    schedule: Schedule = eqx.field(static=True, default="cosine")
    p_start: float = eqx.field(static=True, default=2.0)
    p_end: float = eqx.field(static=True, default=0.5)
    cycles: int = eqx.field(static=True, default=0)
    ladder: tuple[float, ...] | None = eqx.field(static=True, default=None)
    criterion: Criterion = eqx.field(static=True, default="tempered")

    def __check_init__(self) -> None:
        if self.sampler not in ("ula", "mala"):
            raise ValueError(f"a population moves by 'ula' or 'mala', got {self.sampler!r}.")
        if self.temperatures < 1:
            raise ValueError(
                f"thermodynamic training needs at least one power posterior (temperatures >= 1), got "
                f"{self.temperatures}; for plain maximum likelihood use Langevin."
            )
        if self.schedule not in ("cosine", "power", "balanced", "fixed"):
            raise ValueError(
                f"schedule must be 'cosine', 'power', 'balanced' or 'fixed', got {self.schedule!r}."
            )
        if self.criterion not in _CRITERIA:
            raise ValueError(
                f"criterion must be one of {', '.join(_CRITERIA)}, got {self.criterion!r}."
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

    def check(self, model: Any) -> None:
        super().check(model)
        self._needs(model, model.prior.exact, "exact draws from the prior")

    def _more(self) -> str:
        return f", {self.temperatures} power posteriors, {self.criterion} criterion"

    @property
    def info_names(self) -> tuple[str, ...]:
        pairs = tuple(f"swap_{k}" for k in range(self.temperatures))
        rungs = tuple(f"t_{k}" for k in range(1, self.temperatures))
        names = ("log_likelihood", "log_prior", "log_marginal", "reconstruction")
        more = ("acceptance", "drift", "lost", "redrawn", "round_trips")
        return (*names, *more, *pairs, *rungs)

    def memory(self, model: "LatentModel", examples: int, key: PRNGKeyArray) -> Memory:
        """Return persistent chains at every temperature; for a balanced ladder, its rungs and rates."""
        kept: Memory = {}
        if self.persistent:
            z = model.prior.sample(key, examples * self.temperatures)
            kept["chains"] = z.reshape(examples, self.temperatures, *model.prior.shape)
        if self.schedule == "balanced":
            kept["ladder"] = power_law(self.temperatures, self.p_start).astype(jnp.float32)
            kept["rejection"] = jnp.full(self.temperatures, 0.5, jnp.float32)
        return kept

    def rungs(self, memory: Memory, progress: Array | float) -> Float[Array, " N+1"]:
        """Return the ladder [temperatures + 1] of one update."""
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
        self, evaluate: Evaluate, z: Array, t: Array, draw: Any, key: PRNGKeyArray, domain: Any
    ) -> tuple[Array, dict[str, Array]]:
        population = Population(SAMPLERS[self.sampler](domain=domain))

        def step(i: Array, carry: Any) -> Any:
            state, total = carry
            at = jax.random.fold_in(key, i)
            state, info = population.step(evaluate, state, t, self.step_size, at, draw)
            info = info._replace(acceptance=jnp.mean(info.acceptance))
            return state, jax.tree.map(jnp.add, total, info._asdict())

        none = {name: jnp.zeros(()) for name in (*Info._fields, "trips")}
        none |= {"swapped": jnp.zeros(self.temperatures)}
        # Even or odd pairs first, at random: short chains then come to try all pairs.
        start_key, key = jax.random.split(key)
        parity = jax.random.bernoulli(start_key).astype(jnp.int32)
        start = (population.init(evaluate, z, parity), none)
        state, total = jax.lax.fori_loop(0, self.steps, step, start)
        return state.chains.z, total

    def objective(
        self, model: "LatentModel", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        """Return the criterion at fresh samples of all power posteriors, what was seen, and what to keep."""
        start_key, chain_key, bottom_key, noise_key = jax.random.split(key, 4)
        fixed = frozen(model)
        potential, drawn = fixed.prior.for_chains()

        def draw(key: PRNGKeyArray) -> Array:
            return drawn(key, len(x))

        def draw_levels(key: PRNGKeyArray) -> Array:
            return jax.vmap(draw)(jax.random.split(key, self.temperatures))

        t = self.rungs(memory, progress)
        z = jnp.moveaxis(memory["chains"], 1, 0) if self.persistent else draw_levels(start_key)
        evaluate = evaluator(fixed, x, potential)
        z, total = self._run(evaluate, z, t, draw, chain_key, fixed.prior.bounds)
        fresh = draw_levels(jax.random.fold_in(start_key, 1))
        z, redrawn = self.redrawn(jax.lax.stop_gradient(z), fresh, len(fixed.prior.shape))
        if self.persistent:
            memory = memory | {"chains": jnp.moveaxis(z, 0, 1)}
        rates = total["swapped"] / (self.steps / 2)  # each pair is due at every second step
        if self.schedule == "balanced":
            rejection = memory["rejection"] + _RATE * (1 - average(rates) - memory["rejection"])
            rejection = jnp.clip(rejection, 0, 1)
            ladder = t + _RATE * (balanced(t, rejection) - t)
            memory = memory | {"rejection": rejection, "ladder": ladder}

        levels = jnp.concatenate([draw(bottom_key)[None], z])
        criterion = _CRITERIA[self.criterion]
        value, likelihoods, integral, log_prior = criterion(model, x, levels, t, noise_key)
        info = {name: total[name] / self.steps for name in Info._fields}
        info |= {"log_likelihood": likelihoods[-1], "log_prior": log_prior, "redrawn": redrawn}
        info |= {"log_marginal": integral, "round_trips": total["trips"]}
        info |= {f"swap_{k}": rates[k] for k in range(self.temperatures)}
        info |= {f"t_{k}": t[k] for k in range(1, self.temperatures)}
        return self.reported(value, fixed, z, info, memory)
