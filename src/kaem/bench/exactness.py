r"""How exact the inverse transform is: $\sup_u |F(F^{-1}(u)) - u|$ against adaptive quadrature.

$F$ is integrated in float64 (`kaem.bench.oracle`) from the energies' parameters alone: no code of
the tables is shared. Beside each case stands the paper's Algorithm 1 with its 200 nodes.
"""

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..bases import BASES
from ..errors import UserError
from ..priors import REFERENCES, UnivariatePrior
from . import oracle

_MILD, _SHARP = 0.5, 2.0


def measure(
    prior: UnivariatePrior, q: int = 0, p: int = 0, quantiles: int = 201
) -> dict[str, float]:
    """The exact transform and the paper's on one coordinate, against quadrature."""
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
    }


def case(basis: str, strength: float, domain: tuple[float, float], seed: int) -> UnivariatePrior:
    """One coordinate with a Gaussian reference and random energies of a given strength."""
    key, value_key = jax.random.split(jax.random.key(seed))
    prior = UnivariatePrior(1, 1, key=key, basis=basis, domain=domain, activation=None)
    made: Any = prior.energies.basis
    if basis in ("morlet", "mexican-hat"):
        width = 0.5 if strength == _SHARP else 1.5
        return eqx.tree_at(
            lambda p: (
                p.energies.basis.weight,
                p.energies.basis.raw_width,
                p.energies.basis.centre,
                p.energies.basis.tau,
            ),
            prior,
            (
                jnp.full((1, 1), strength),
                jnp.full((1, 1), (width**2 - made.width_floor**2) ** 0.5),
                jnp.full((1, 1), 0.3),
                jnp.asarray(5.0 if strength == _SHARP else 1.0),
            ),
        )
    noise = jax.random.normal(value_key, made.coefficients.shape)
    smooth = {"chebyshev": 1 / (1 + jnp.arange(made.coefficients.shape[-1])) ** 0.5}
    return eqx.tree_at(
        lambda p: p.energies.basis.coefficients, prior, strength * noise * smooth.get(basis, 1.0)
    )


def trained(path: str | None) -> UnivariatePrior:
    """The prior of a trained run, or of 200 updates of the quickstart."""
    if path:
        from ..serialisation import load

        prior = getattr(load(path), "prior", None)
        if not isinstance(prior, UnivariatePrior):
            raise UserError(
                f"{path} has a {type(prior).__name__}; this benchmark takes runs with a univariate "
                "prior, such as quickstart."
            )
        return prior
    from dataclasses import replace

    from ..data import load as load_data
    from ..training.build import build_model, build_posterior
    from ..training.config import Config, read_preset
    from ..training.loop import initial_state, updates

    config = Config.from_dict(read_preset("quickstart"))
    config = replace(config, training=replace(config.training, steps=200))
    x = load_data("mnist5k")
    posterior = build_posterior(config)
    state = initial_state(build_model(config, x.shape[1:]), posterior, config, len(x))
    for boundary in updates(state, x, posterior, config):
        state = boundary.state
    assert isinstance(state.model.prior, UnivariatePrior)
    return state.model.prior


def ks_test(prior: UnivariatePrior, samples: int = 1_000_000) -> float:
    """The p-value of a Kolmogorov-Smirnov test of samples against quadrature."""
    from scipy.interpolate import CubicSpline
    from scipy.stats import kstest

    lo, hi = (float(v) for v in np.asarray(prior.domain)[0])
    points = np.linspace(lo, hi, 4001)
    cdf, _ = oracle.cdf(oracle.log_density(prior), points)
    cached = prior.refined().cache()
    z = np.concatenate(
        [
            np.asarray(cached.sample(jax.random.key(i), 100_000))[:, 0, 0]
            for i in range(samples // 100_000)
        ]
    )
    return float(kstest(z.astype(np.float64), CubicSpline(points, cdf)).pvalue)


def run(options: argparse.Namespace) -> dict[str, Any]:
    details: dict[str, Any] = {"reference": {}, "mild": {}, "sharp": {}, "trained": {}}
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
    learned = trained(options.run)
    departure = np.asarray(learned.summary().departure)
    for i in np.argsort(-departure, axis=None)[:3]:
        q, p = (int(v) for v in np.unravel_index(i, departure.shape))
        details["trained"][f"q={q + 1},p={p + 1}"] = measure(learned, q, p)
    details["ks_p_value"] = ks_test(case("morlet", _SHARP, (-12.0, 12.0), 2))
    worst = {
        f"worst_{group}": max(c["error"] for c in details[group].values())
        for group in ("reference", "mild", "sharp", "trained")
    }
    groups = [c for g in ("reference", "mild", "sharp", "trained") for c in details[g].values()]
    morlet = details["sharp"]["morlet"]
    return {
        "benchmark": "exactness",
        "results": {
            **worst,
            "worst_sharp_morlet": morlet["error"],
            "paper_sharp_morlet": morlet["paper_error"],
            "paper_gaussian": details["reference"]["gaussian"]["paper_error"],
            "worst_log_z": max(c["log_z_error"] for c in groups),
            "ks_p_value": details["ks_p_value"],
        },
        "details": details,
    }


def render(result: dict[str, Any]) -> str:
    lines = [
        "| case | cells | sup error | estimated | paper's Algorithm 1 | Z, relative |",
        "|---|---|---|---|---|---|",
    ]
    for group in ("reference", "mild", "sharp", "trained"):
        for name, c in result["details"][group].items():
            lines.append(
                f"| {group} {name} | {c['cells']} | {c['error']:.1e} | {c['estimate']:.1e} "
                f"| {c['paper_error']:.1e} | {c['log_z_error']:.1e} |"
            )
    p = result["results"]["ks_p_value"]
    return "\n".join(
        [*lines, "", f"Kolmogorov-Smirnov, a million samples of the sharp Morlet: p = {p:.2f}"]
    )
