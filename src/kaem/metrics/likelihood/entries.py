"""Log-likelihoods as metrics: what was found, what it is worth, and which of two to believe."""

from functools import partial
from math import isfinite
from typing import Any

import jax
import numpy as np

from ...models import AbstractModel
from .. import figures
from ..metric import Entry, Examples, Metric, Request, finite
from .driver import LogLikelihood, log_likelihood, planned
from .estimators import ESTIMATORS


def likelihood(source: Examples, method: str) -> dict[str, Entry]:
    """Return log p(x) and bits per dimension of examples."""
    model, x, request = source.model, source.x, source.request
    report, key = request.report, jax.random.key(request.seed)
    effort = _effort(request)
    progress = report and partial(report, "log p(x)")
    found = log_likelihood(model, x, method=method, key=key, progress=progress, **effort)
    source.figures[f"likelihood-{method}.png"] = partial(figures.likelihoods, found.value, method)
    about: Entry = {
        "method": method,
        "effort": _spent(model, found, effort),
        **source.about,
        "least_effective_samples": float(found.effective_samples.min()),
    }
    nats = {
        "value": found.mean,
        "error": found.mean_error,
        "error_of_examples": found.examples_error,
        "error_of_monte_carlo": found.monte_carlo_error,
    }
    scale = 1 / (np.log(2) * found.dimensions)
    bits = {"value": found.bits_per_dimension, "error": found.mean_error * scale}
    if not isfinite(found.monte_carlo_error):
        bound = None
        if not ESTIMATORS[method].bound:
            bound = log_likelihood(model, x, method="importance", key=key).mean
            about["importance_bound"] = bound
        about["why"] = _collapse(model, found, bound)
    return {
        f"log_marginal_{method}": finite(nats) | about,
        f"bits_per_dimension_{method}": finite(bits) | about,
    }


def _effort(request: Request) -> dict[str, Any]:
    own = ("temperatures", "steps", "target_error", "budget")
    return {"samples": request.proposals} | {name: getattr(request, name) for name in own}


def _spent(model: AbstractModel, found: LogLikelihood, effort: dict[str, Any]) -> Entry:
    """Return the effort that was stated, or what one that adapted was to reach, and came to."""
    plan = planned(model, found.method, **effort)
    passes = found.passes
    assert passes is not None
    came_to = {"mean_passes": float(passes.mean()), "most_passes": float(passes.max())}
    if plan.target is None:
        return plan.effort._asdict() | came_to
    largest = float(found.error.max())
    goal = {"target_error": plan.target, "budget": plan.budget}
    share = float(np.mean(found.error <= plan.target))
    return goal | came_to | {"share_at_target": share} | finite({"largest_error": largest})


def _collapse(model: AbstractModel, found: LogLikelihood, bound: float | None) -> str:
    """Say why there is no error, what the value is worth then, which of two to believe, and what to try.

    Importance sampling and AIS average weights whose mean is p(x): by Markov's inequality they are
    more than b nats too high with a probability of at most e^-b. Chains that have not mixed promise
    nothing in either direction.
    """
    method, value = found.method, found.mean
    if bound is not None:
        verdict = (
            f"Importance sampling of the same examples gives {bound:.4g}, which is hardly ever too high: "
            f"believe that, as a lower bound, and not {value:.4g}"
            if bound > value
            else f"{value:.4g} is above what importance sampling finds of the same examples "
            f"({bound:.4g}, a lower bound), so that nothing speaks against it, but nothing vouches for it "
            "either"
        )
        return (
            "the chains of some examples have not mixed, so that their values may be an accident of "
            f"where they started and have no error. {verdict}. More --steps and --temperatures let the "
            "chains mix; ais gives another lower bound, and the largest of those is the best."
        )
    latent = model.with_latents("log p(x)")
    worth = (
        "it is a lower bound, more than b nats too high with a probability of at most exp(-b)"
        if latent.prior.exact
        else "it means little, since the normaliser of its prior is as uncertain"
    )
    ladder = ESTIMATORS[method].ladder
    stated = "more --temperatures and --proposals raise" if ladder else "more --proposals raise"
    more = f"{stated if found.target_error is None else 'a larger --budget raises'} it"
    if not ladder:
        more += "; ais gives another lower bound, and the larger is the better"
    return (
        "for some examples fewer than four effective samples carry the weight, so that the value has "
        f"no error: {worth}; {more}. Estimates from chains (steppingstone, corrected, trapezoid) count "
        "only where they are larger and say that they have mixed."
    )


def _check(model: AbstractModel, request: Request, method: str) -> None:
    planned(model, method, **_effort(request))


def likelihood_metrics() -> dict[str, Metric]:
    """Return a metric for each estimator of log p(x)."""
    return {
        f"likelihood-{method}": Metric(
            f"log p(x) and bits per dimension: {estimator.help}",
            "examples",
            partial(likelihood, method=method),
            options=("proposals", "temperatures", "steps", "target_error", "budget"),
            check=partial(_check, method=method),
            flag="--likelihood",
        )
        for method, estimator in ESTIMATORS.items()
    }
