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

from ...drawing import BLUE, GREEN, GREY, ORANGE, new_figure, save_figure
from ...errors import UserError
from ...learning import Thermodynamic
from ...learning.schedules import checked_ladder, cosine_exponent
from ...models import LatentModel
from ...runs.folder import RunFolder
from ..gallery import Gallery
from ..panels import annotate
from ..power_posteriors import power_posteriors
from ._figure import Figure


class Temperatures(NamedTuple):
    """What a run logged about its ladder, and the schedule it followed."""

    schedule: str
    steps: Float[np.ndarray, " S"]  # updates at which something was logged
    ladder: Float[np.ndarray, "S N+1"]
    swap_rates: Float[np.ndarray, "S N"]  # of the pairs (t_k, t_k+1)
    updates: Float[np.ndarray, " U"]  # over all of training
    exponent: Float[np.ndarray, " U"] | None  # p(i); None where the ladder is no power law


def _learner(run: RunFolder) -> Thermodynamic | None:
    """Return how the run learned, if that was over temperatures."""
    learner = run.settings().learner()
    # No other learner has a ladder, of which every panel here is a picture.
    return learner if isinstance(learner, Thermodynamic) else None


def temperatures(run: RunFolder) -> Temperatures:
    """Return the ladder, its swap rates and the exponent of a thermodynamic run."""
    settings, learner = run.settings(), _learner(run)
    if learner is None:
        raise UserError(
            f"{run.path} has no temperatures: it is a model of kind {settings.kinds['model']!r} trained "
            f"with learner.kind = {settings.kinds['learner']!r}. A run that has: `kaem train PRESET --set "
            "learner.kind=thermodynamic`."
        )
    history, total = run.history(), settings.training.steps
    if not history:
        raise UserError("the run has no history yet; train it for at least one log interval.")
    pairs, updates = range(learner.temperatures), np.linspace(0, total, 201)
    return Temperatures(
        learner.schedule,
        np.array([record["step"] for record in history]),
        np.stack([_ladder(learner, record, total) for record in history]),
        np.array([[record.get(f"swap_{k}", np.nan) for k in pairs] for record in history]),
        updates,
        _exponent(learner, updates / total),
    )


def _exponent(learner: Thermodynamic, progress: np.ndarray) -> np.ndarray | None:
    match learner.schedule:
        case "cosine":
            ends = learner.p_start, learner.p_end
            return np.asarray(cosine_exponent(jnp.asarray(progress), *ends, learner.cycles))
        case "power":
            return np.full(progress.shape, learner.p_start)
    return None


def _ladder(learner: Thermodynamic, record: dict[str, Any], total: int) -> np.ndarray:
    """Return the ladder as logged at one step, or as the settings say."""
    inner = [record.get(f"t_{k}", np.nan) for k in range(1, learner.temperatures)]
    ladder = np.array([0.0, *inner, 1.0])
    if learner.schedule == "fixed" or (learner.schedule != "balanced" and np.isnan(ladder).any()):
        return np.asarray(learner.rungs({}, record["step"] / total), float)
    return ladder


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
    """Return the bins of `ladder` for a few examples; `particles` and `moves` as in `power_posteriors`."""
    t = checked_ladder(np.asarray(ladder, float).tolist())
    finer = (np.linspace(0, 1, 11) ** 4).astype(t.dtype)
    fine = np.unique(np.concatenate([t, finer]))
    effort: Any = {"t": fine.tolist(), "particles": particles, "moves": moves}
    powers = [
        power_posteriors(model, one, jax.random.fold_in(key, i), **effort)
        for i, one in enumerate(x)
    ]
    curve = np.mean([one.expected for one in powers], axis=0)
    at = np.searchsorted(fine, t)
    return Trapezoids(
        t=fine[at].astype(float),
        expected=curve[at],
        fine_t=fine.astype(float),
        fine_expected=curve,
        integral=float(np.trapezoid(curve[at], fine[at])),
        log_evidence=float(np.mean([one.log_evidence[-1] for one in powers])),
        examples=len(powers),
    )


def temperature_figure(seen: Temperatures, path: Path, bins: Trapezoids | None = None) -> None:
    """Draw ladder, exponent, swap rates, and the trapezoids if they are given."""
    from matplotlib import colormaps

    figure, axes = new_figure(7.2, 5.2 if bins is not None else 4.6, 2, 2)
    number = seen.ladder.shape[1] - 1
    colours = colormaps["cividis"](np.linspace(0, 0.92, number + 1))
    marker = "o" if len(seen.steps) == 1 else None
    for colour, rung in zip(colours, seen.ladder.T, strict=True):
        axes[0, 0].plot(seen.steps, rung, color=colour, lw=1.1, marker=marker)
    title = f"Ladder of {number + 1} temperatures: {seen.schedule}"
    annotate(axes[0, 0], "update", "temperature $t_k$", title, grid=True)
    _schedule(axes[0, 1], seen)
    _swaps(axes[1, 0], seen, colours, marker)
    if bins is None:
        axes[1, 1].axis("off")
    else:
        _bins(axes[1, 1], bins)
    save_figure(figure, path)


def _schedule(axis: Any, seen: Temperatures) -> None:
    if seen.exponent is not None:
        last = int(seen.steps[-1])
        axis.plot(seen.updates, seen.exponent, color=BLUE, lw=1.3)
        axis.axhline(1, color=GREY, lw=0.8, ls="--", label="p = 1: evenly spaced")
        axis.axvline(last, color=ORANGE, lw=0.8, ls=":", label=f"last logged update, {last:,}")
        names = "update", "exponent p of $t_k = (k/N)^p$", "Exponent schedule"
    else:
        share = np.linspace(0, 1, seen.ladder.shape[1])
        for ladder, colour, label in zip(
            seen.ladder[[0, -1]], (GREY, BLUE), ("first logged", "last logged"), strict=True
        ):
            axis.plot(share, ladder, "o-", ms=3, lw=1, color=colour, label=label)
        title = f"Spacing: no exponent, the ladder is {seen.schedule}"
        names = "k/N", "temperature $t_k$", title
    annotate(axis, *names, grid=True, legend=True)


def _swaps(axis: Any, seen: Temperatures, colours: np.ndarray, marker: str | None) -> None:
    """Draw the rates over training, with the range of the last ones in the title."""
    for k, rates in enumerate(seen.swap_rates.T):
        axis.plot(seen.steps, rates, color=colours[k], lw=1.1, marker=marker, label=f"{k}-{k + 1}")
    axis.set_ylim(0, 1)
    last = seen.swap_rates[-1]
    title = f"Swap rates of neighbours, last {np.nanmin(last):.2f} to {np.nanmax(last):.2f}"
    annotate(axis, "update", "accepted swaps", title, grid=True)
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
    title = f"Thermodynamic integral, mean of {bins.examples} examples"
    annotate(axis, "temperature t", r"$E_t[\log p(x|z)]$, nats", title, grid=True)
    axis.legend(fontsize=7, framealpha=0.9, edgecolor="none", loc="lower right")


def _draw(gallery: Gallery, path: Path) -> Temperatures:
    seen = temperatures(gallery.run)
    x = gallery.shown(gallery.count or 4)
    model = gallery.model.with_quantiles("temperatures")
    temperature_figure(seen, path, trapezoids(model, x, seen.ladder[-1], gallery.key(7)))
    return seen


TEMPERATURES = Figure(
    about="ladder, exponent, swap rates and integral of a thermodynamic run (examples, 4)",
    draw=_draw,
    options=("count", "example", "data", "split"),
    caption="The ladder of temperatures, how often neighbours swapped, and the integral they add up to",
    section="Temperatures",
    belongs=lambda gallery: _learner(gallery.run) is not None,
)
