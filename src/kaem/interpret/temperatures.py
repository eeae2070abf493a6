r"""The temperatures of a thermodynamic run, and what its trapezoids make of the integral.

$$\log p(x) = \int_0^1 E_t\,dt,\qquad E_t = \mathbb{E}_{p(z\mid x,t)}[\log p(x\mid z)],\qquad
\log p(x) \approx \tfrac12\sum_k (t_k - t_{k-1})(E_{k-1} + E_k)$$

(eq. SS-KAEM). $E_t$ increases, and mostly near $t = 0$: where the ladder has no rungs there, the
trapezoids lie below the curve. Ladder and swap rates are those logged in training, means over a log
interval; rungs that were not logged follow from the settings.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import UserError
from ..model import LatentModel
from ..objectives import checked_ladder, cosine_exponent, power_law
from ..training.run import Run
from .figures import BLUE, GREEN, GREY, ORANGE, new_figure, save_figure
from .power_posteriors import power_posteriors


class Temperatures(NamedTuple):
    """What a run logged about its ladder, and the schedule it followed."""

    schedule: str
    steps: Float[np.ndarray, " S"]  # updates at which something was logged
    ladder: Float[np.ndarray, "S N+1"]
    swap_rates: Float[np.ndarray, "S N"]  # of the pairs (t_k, t_k+1)
    updates: Float[np.ndarray, " U"]  # over all of training
    exponent: Float[np.ndarray, " U"] | None  # p(i); None where the ladder is no power law


def temperatures(run: Run) -> Temperatures:
    """The ladder, its swap rates and the exponent of a thermodynamic run."""
    config, history = run.config(), run.history()
    settings = config.posterior
    if settings.criterion != "thermodynamic" or config.model.kind != "kaem":
        raise UserError(
            f"{run.path} has no temperatures: it is a model of kind {config.model.kind!r} trained with "
            f"posterior.criterion = {settings.criterion!r}. A run that has: `kaem train PRESET --set posterior.kind=ula "
            "--set posterior.criterion=thermodynamic`."
        )
    if not history:
        raise UserError("the run has no history yet; train it for at least one log interval.")
    number, total = settings.temperatures, config.training.steps
    steps = np.array([record["step"] for record in history])
    ladder = np.stack([_ladder(settings, record, total) for record in history])
    swaps = [[record.get(f"swap_{k}", np.nan) for k in range(number)] for record in history]
    updates = np.linspace(0, total, 201)
    return Temperatures(
        settings.schedule,
        steps,
        ladder,
        np.array(swaps),
        updates,
        _exponent(settings, updates / total),
    )


def _exponent(settings: Any, progress: np.ndarray) -> np.ndarray | None:
    match settings.schedule:
        case "cosine":
            ends = settings.p_start, settings.p_end
            return np.asarray(cosine_exponent(jnp.asarray(progress), *ends, settings.cycles))
        case "power":
            return np.full(progress.shape, settings.p_start)
    return None


def _ladder(settings: Any, record: dict[str, Any], total: int) -> np.ndarray:
    """As logged at one step, or as the settings say."""
    number = settings.temperatures
    if settings.schedule == "fixed":
        return checked_ladder(settings.ladder)
    logged = [record.get(f"t_{k}", np.nan) for k in range(1, number)]
    if np.isfinite(logged).all():
        return np.array([0.0, *logged, 1.0])
    exponent = _exponent(settings, np.array([record["step"] / total]))
    if exponent is None:
        return np.array([0.0, *logged, 1.0])
    return np.asarray(power_law(number, exponent[0]))


class Trapezoids(NamedTuple):
    """The thermodynamic integral of a batch, by the rungs of a ladder and by a finer one."""

    t: Float[np.ndarray, " N+1"]
    expected: Float[np.ndarray, " N+1"]  # E_t at the rungs, mean of the examples
    fine_t: Float[np.ndarray, " F"]
    fine_expected: Float[np.ndarray, " F"]
    integral: float  # the area of the trapezoids
    log_evidence: float  # log p(x) by sequential Monte Carlo, without trapezoids
    examples: int


def trapezoids(
    model: LatentModel,
    x: Float[Array | np.ndarray, "n ..."],
    ladder: Float[np.ndarray, " N+1"],
    key: PRNGKeyArray,
    *,
    particles: int = 128,
    moves: int = 20,
) -> Trapezoids:
    """The bins of `ladder` for a few examples; `particles` and `moves` as in `power_posteriors`."""
    t = checked_ladder(np.asarray(ladder, float).tolist())
    finer = (np.linspace(0, 1, 11) ** 4).astype(t.dtype)
    fine = np.unique(np.concatenate([t, finer]))
    found = [
        power_posteriors(
            model,
            one,
            jax.random.fold_in(key, i),
            t=fine.tolist(),
            particles=particles,
            moves=moves,
        )
        for i, one in enumerate(x)
    ]
    curve = np.mean([f.expected for f in found], axis=0)
    at = np.searchsorted(fine, t)
    return Trapezoids(
        t=fine[at].astype(float),
        expected=curve[at],
        fine_t=fine.astype(float),
        fine_expected=curve,
        integral=float(np.trapezoid(curve[at], fine[at])),
        log_evidence=float(np.mean([f.log_evidence[-1] for f in found])),
        examples=len(found),
    )


def temperature_figure(found: Temperatures, path: Path, bins: Trapezoids | None = None) -> None:
    """Ladder, exponent, swap rates, and the trapezoids if they are given."""
    from matplotlib import colormaps

    figure, axes = new_figure(7.2, 5.2 if bins is not None else 4.6, 2, 2)
    number = found.ladder.shape[1] - 1
    colours = colormaps["cividis"](np.linspace(0, 0.92, number + 1))
    marker = "o" if len(found.steps) == 1 else None
    for k in range(number + 1):
        axes[0, 0].plot(found.steps, found.ladder[:, k], color=colours[k], lw=1.1, marker=marker)
    axes[0, 0].set_ylabel("temperature $t_k$", fontsize=8)
    axes[0, 0].set_title(f"Ladder of {number + 1} temperatures: {found.schedule}", fontsize=8.5)
    _schedule(axes[0, 1], found)
    _swaps(axes[1, 0], found, colours, marker)
    if bins is None:
        axes[1, 1].axis("off")
    else:
        _bins(axes[1, 1], bins)
    for axis in (axes[0, 0], axes[1, 0]):
        axis.set_xlabel("update", fontsize=8)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25, lw=0.5)
    save_figure(figure, path)


def _schedule(axis: Any, found: Temperatures) -> None:
    if found.exponent is not None:
        axis.plot(found.updates, found.exponent, color=BLUE, lw=1.3)
        axis.axhline(1, color=GREY, lw=0.8, ls="--", label="p = 1: evenly spaced")
        last = int(found.steps[-1])
        axis.axvline(last, color=ORANGE, lw=0.8, ls=":", label=f"last logged update, {last:,}")
        axis.set_xlabel("update", fontsize=8)
        axis.set_ylabel("exponent p of $t_k = (k/N)^p$", fontsize=8)
        axis.set_title("Exponent schedule", fontsize=8.5)
        axis.legend(fontsize=7, frameon=False)
        return
    share = np.linspace(0, 1, found.ladder.shape[1])
    axis.plot(share, found.ladder[0], "o-", ms=3, lw=1, color=GREY, label="first logged")
    axis.plot(share, found.ladder[-1], "o-", ms=3, lw=1, color=BLUE, label="last logged")
    axis.set_xlabel("k/N", fontsize=8)
    axis.set_ylabel("temperature $t_k$", fontsize=8)
    axis.set_title("Spacing: no exponent, the ladder is " + found.schedule, fontsize=8.5)
    axis.legend(fontsize=7, frameon=False)


def _swaps(axis: Any, found: Temperatures, colours: np.ndarray, marker: str | None) -> None:
    """Over training, with the last rate of each pair at the right."""
    for k, rates in enumerate(found.swap_rates.T):
        axis.plot(found.steps, rates, color=colours[k], lw=1.1, marker=marker, label=f"{k}-{k + 1}")
    axis.set_ylim(0, 1)
    axis.set_ylabel("accepted swaps", fontsize=8)
    last = found.swap_rates[-1]
    axis.set_title(
        f"Swap rates of neighbours, last {np.nanmin(last):.2f} to {np.nanmax(last):.2f}",
        fontsize=8.5,
    )
    axis.legend(title="pair", fontsize=7, title_fontsize=7, frameon=False, ncols=-(-len(last) // 4))


def _bins(axis: Any, bins: Trapezoids) -> None:
    floor = min(0.0, bins.fine_expected.min())
    axis.fill_between(
        bins.t, bins.expected, floor, color=BLUE, alpha=0.2, lw=0,
        label=f"trapezoids: {bins.integral:,.1f} nats",
    )  # fmt: skip
    axis.vlines(bins.t, floor, bins.expected, color=BLUE, lw=0.6)
    axis.plot(bins.t, bins.expected, "o-", color=BLUE, ms=3, lw=1)
    axis.plot(
        bins.fine_t, bins.fine_expected, color=GREEN, lw=1.1,
        label=f"finer: log p(x) = {bins.log_evidence:,.1f} nats",
    )  # fmt: skip
    axis.set_xlabel("temperature t", fontsize=8)
    axis.set_ylabel(r"$E_t[\log p(x|z)]$, nats", fontsize=8)
    axis.set_title(f"Thermodynamic integral, mean of {bins.examples} examples", fontsize=8.5)
    axis.legend(fontsize=7, framealpha=0.9, edgecolor="none", loc="lower right")
