r"""How exact the inverse transform is: $\sup_u |F(F^{-1}(u)) - u|$ against adaptive quadrature.

$F$ is integrated in float64 (`kaem.bench.oracle`) from the energies' parameters alone: no code of
the tables is shared. Beside each case stands the paper's Algorithm 1 with its 200 nodes.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ..bases import BASES, Chebyshev
from ..errors import UserError
from ..loading import load
from ..priors import REFERENCES, UnivariatePrior
from ..runs.comparing import markdown_table
from . import oracle
from .training import after

_MILD, _SHARP = 0.5, 2.0
_GROUPS = ("reference", "mild", "sharp", "trained")


def measure(prior: UnivariatePrior, q: int = 0, p: int = 0, quantiles: int = 201) -> dict[str, Any]:
    """Return the errors of the exact transform and of the paper's on one coordinate, against quadrature."""
    exact = prior.refined()
    log_density = oracle.log_density(prior, q, p)
    lo, hi = (float(v) for v in np.asarray(prior.domain)[p])
    # Even quantiles, the tails, and the ends.
    tails = np.logspace(-6, -3, 10)
    u = np.unique(np.concatenate([np.linspace(0, 1, quantiles), tails, 1 - tails]))
    u = u.astype(np.float32)
    full = jnp.broadcast_to(jnp.asarray(u)[:, None, None], (len(u), *prior.shape))
    errors = {}
    for name, variant in (("exact", exact), ("paper", prior.with_inverse_transform("paper"))):
        z = np.asarray(variant.inverse_cdf(full), np.float64)[:, q, p]
        ends = np.concatenate([[lo], np.clip(z, lo, hi), [hi]])
        cdf, log_z = oracle.cdf(log_density, ends)
        errors[name] = float(np.max(np.abs(cdf[1:-1] - u.astype(np.float64))))
    log_normaliser = float(exact.log_normaliser()[q, p])
    return {
        "error": errors["exact"],
        "paper_error": errors["paper"],
        "estimate": float(exact.table_error()[q, p]),
        "cells": exact.cells,
        "log_z": log_z,
        "log_z_error": abs(np.expm1(log_normaliser - log_z)),
        "independent": oracle.independent(prior),
    }


def case(basis: str, strength: float, domain: tuple[float, float], seed: int) -> UnivariatePrior:
    """Return one coordinate with a Gaussian reference and random energies of a given strength."""
    key, value_key = jax.random.split(jax.random.key(seed))
    prior = UnivariatePrior(1, 1, key=key, basis=basis, domain=domain, activation=None)
    strong = _strengthened(prior.energies.basis, strength, value_key)
    return eqx.tree_at(lambda p: p.energies.basis, prior, strong)


def _strengthened(basis: Any, strength: float, key: PRNGKeyArray) -> Any:
    """Return a basis whose functions have about this strength; one of an unknown kind is as it began."""
    if hasattr(basis, "raw_width"):
        width, tau = (0.5, 5.0) if strength == _SHARP else (1.5, 1.0)
        raw_width = (width**2 - basis.width_floor**2) ** 0.5
        values = {"weight": strength, "raw_width": raw_width, "centre": 0.3}
        arrays = {name: jnp.full((1, 1), value) for name, value in values.items()}
        return replace(basis, **arrays, tau=jnp.asarray(tau))
    if hasattr(basis, "coefficients"):
        shape = basis.coefficients.shape
        decay = (1 + jnp.arange(shape[-1])) ** 0.5 if type(basis) is Chebyshev else 1.0
        noise = jax.random.normal(key, shape) / decay
        return eqx.tree_at(lambda b: b.coefficients, basis, strength * noise)
    return basis


def trained(path: str | None) -> UnivariatePrior:
    """Return the prior of a trained run, or of 200 updates of `digits-kan`."""
    if path:
        prior = getattr(load(path), "prior", None)
        # Coordinates of any other prior are not the (q, p) that the oracle integrates.
        if not isinstance(prior, UnivariatePrior):
            raise UserError(
                f"{path} has a {type(prior).__name__}; this benchmark takes runs with a univariate "
                "prior, such as digits-kan."
            )
        return prior
    return after("digits-kan", 200).prior


def ks_test(prior: UnivariatePrior, samples: int = 1_000_000) -> float:
    """Return the p-value of a Kolmogorov-Smirnov test of samples against quadrature."""
    from scipy.interpolate import CubicSpline
    from scipy.stats import kstest

    lo, hi = (float(v) for v in np.asarray(prior.domain)[0])
    points = np.linspace(lo, hi, 4001)
    cdf, _ = oracle.cdf(oracle.log_density(prior), points)
    cached = prior.refined().cache()
    draws = [cached.sample(jax.random.key(i), 100_000) for i in range(samples // 100_000)]
    z = np.concatenate(draws)[:, 0, 0].astype(np.float64)
    return float(kstest(z, CubicSpline(points, cdf)).pvalue)


def run(run: str | None = None) -> dict[str, Any]:
    """Measure references, mild and sharp energies of every basis, and densities of a trained `run`."""
    details: dict[str, Any] = {group: {} for group in _GROUPS}
    for name in REFERENCES:
        domain = (-12.0, 12.0) if name == "gaussian" else None
        prior = UnivariatePrior(
            1, 1, key=jax.random.key(0), reference=name, domain=domain, activation=None
        )
        zero = jnp.zeros_like(prior.energies.basis.coefficients)  # type: ignore[attr-defined]
        prior = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, zero)
        details["reference"][name] = measure(prior)
    for basis in BASES:
        details["mild"][basis] = measure(case(basis, _MILD, (-4.0, 4.0), 1))
        domain = (-12.0, 12.0) if basis == "morlet" else (-4.0, 4.0)
        details["sharp"][basis] = measure(case(basis, _SHARP, domain, 2))
    learned = trained(run)
    departure = np.asarray(learned.summary().departure)
    for i in np.argsort(-departure, axis=None)[:3]:
        q, p = (int(v) for v in np.unravel_index(i, departure.shape))
        details["trained"][f"q={q + 1},p={p + 1}"] = measure(learned, q, p)
    details["ks_p_value"] = ks_test(case("morlet", _SHARP, (-12.0, 12.0), 2))
    groups = {group: list(details[group].values()) for group in _GROUPS}
    morlet = details["sharp"]["morlet"]
    results = {f"worst_{group}": max(c["error"] for c in groups[group]) for group in _GROUPS}
    results |= {
        "worst_sharp_morlet": morlet["error"],
        "paper_sharp_morlet": morlet["paper_error"],
        "paper_gaussian": details["reference"]["gaussian"]["paper_error"],
        "worst_log_z": max(c["log_z_error"] for group in groups.values() for c in group),
        "ks_p_value": details["ks_p_value"],
    }
    return {"results": results, "details": details}


def render(result: dict[str, Any]) -> str:
    """Return a table of all cases, and the p-value of the test of samples."""
    rows = [["case", "cells", "sup error", "estimated", "paper's Algorithm 1", "Z, relative"]]
    cases = [(g, name, c) for g in _GROUPS for name, c in result["details"][g].items()]
    for group, name, c in cases:
        errors = (c[key] for key in ("error", "estimate", "paper_error", "log_z_error"))
        mark = "" if c["independent"] else " *"
        rows.append([f"{group} {name}{mark}", str(c["cells"]), *(f"{e:.1e}" for e in errors)])
    note = "\\* against its own function in double precision: `kaem.bench.oracle` has no other formula."
    notes = [] if all(c["independent"] for _, _, c in cases) else [note]
    p = result["results"]["ks_p_value"]
    notes.append(f"Kolmogorov-Smirnov, a million samples of the sharp Morlet: p = {p:.2f}")
    return "\n\n".join([markdown_table(rows), *notes])
