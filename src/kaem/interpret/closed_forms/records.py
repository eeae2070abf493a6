"""Closed forms as plain JSON, both ways.

What is read is checked: terms are looked up by name, parameters are finite numbers, and nothing is
ever evaluated from text. Whether a form is good is decided from its measures, not read.
"""

import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ...bases.closed_form import TERMS, ClosedForm
from ...errors import UNREADABLE, UserError
from ...files import parse_json, read_text
from ...priors import REFERENCES
from ..curves import place_name
from .fits import NODES, Fit, Fits, Of, family
from .search import MAX_PARAMETERS

FORMAT = "kaem-symbolic-1"
_MEASURES = (
    "kl", "r_squared", "density_error", "relative_error", "bic", "parameters", "log_normaliser",
)  # fmt: skip


def to_json(fits: Fits) -> dict[str, Any]:
    """Return closed forms as plain data: names and numbers."""
    return {
        "format": FORMAT,
        "of": fits.of,
        "reference": fits.reference,
        "shape": list(fits.shape),
        "samples": fits.samples,
        "total_kl": fits.total_kl,
        "good": fits.good,
        "coordinates": [fit_to_json(fit, fits.of) for fit in fits],
    }


def fit_to_json(fit: Fit, of: Of) -> dict[str, Any]:
    """Return one coordinate as plain data."""
    return {
        "latent": place_name(fit.place),
        "place": list(fit.place),
        "domain": list(fit.domain),
        "family": family(fit.form, of),
        "terms": [
            {"term": n, "parameters": dict(zip(TERMS[n].parameters, v, strict=True))}
            for n, v in zip(fit.form.names, fit.form.values, strict=True)
        ],
        **{name: getattr(fit, name) for name in _MEASURES},
        "good": fit.good,
        "verdict": fit.verdict,
    }


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a finite number")
    return float(value)


def _term(entry: Any) -> tuple[str, tuple[float, ...]]:
    name = entry["term"]
    if not isinstance(name, str) or name not in TERMS:
        raise ValueError(f"unknown term {str(name)[:40]!r}; known are {', '.join(TERMS)}")
    term, given = TERMS[name], entry["parameters"]
    if not isinstance(given, dict) or set(given) != set(term.parameters):
        raise ValueError(f"{name} has the parameters {', '.join(term.parameters)}, got {given!r}")
    values = tuple(_number(given[key], f"{name} {key}") for key in term.parameters)
    wrong = [
        k for k, v in zip(term.parameters, values, strict=True) if k in term.positive and v <= 0
    ]
    if wrong:
        raise ValueError(f"{name} {wrong[0]} is {given[wrong[0]]}, not positive")
    return name, values


def fit_from_json(entry: Any, axes: int) -> Fit:
    """Return one coordinate of a latent with so many axes; or raise ValueError or KeyError."""
    terms = [_term(term) for term in entry["terms"]]
    if len(terms) > MAX_PARAMETERS:
        raise ValueError(f"{len(terms)} terms, more than {MAX_PARAMETERS}")
    place, domain = entry["place"], [_number(x, "domain") for x in entry["domain"]]
    if len(place) != axes or not all(type(i) is int for i in place):
        raise ValueError(f"place {place!r} is not {axes} whole numbers")
    lo, hi = domain
    form = ClosedForm(tuple(n for n, _ in terms), tuple(v for _, v in terms))
    with np.errstate(all="ignore"):
        if not (lo < hi and np.isfinite(form(np.linspace(lo, hi, NODES))).all()):
            raise ValueError(f"the closed form at {place} is not finite on its domain {domain}")
    measures: dict[str, Any] = {name: _number(entry[name], name) for name in _MEASURES}
    measures["parameters"] = int(measures["parameters"])
    return Fit(tuple(place), (lo, hi), form, **measures)


def from_json(data: Any) -> Fits:
    """Return closed forms from what `to_json` made, checked; no text is ever evaluated."""
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {str(data['format'])[:40]!r}, not {FORMAT!r}")
        if data["of"] not in ("log-density", "energy"):
            raise ValueError(f"of is {str(data['of'])[:40]!r}, not 'log-density' or 'energy'")
        shape = tuple(data["shape"])
        if len(shape) not in (1, 2) or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(f"shape {data['shape']!r} is not one or two positive whole numbers")
        if len(data["coordinates"]) != math.prod(shape):
            raise ValueError(f"{len(data['coordinates'])} coordinates do not fill shape {shape}")
        fits = tuple(fit_from_json(entry, len(shape)) for entry in data["coordinates"])
        for expected, fit in zip(np.ndindex(*shape), fits, strict=True):
            if fit.place != expected:
                raise ValueError(f"place {list(fit.place)} stands where {list(expected)} should")
        if data["reference"] not in REFERENCES:
            raise ValueError(f"unknown reference {str(data['reference'])[:40]!r}")
        samples = int(_number(data["samples"], "samples"))
        return Fits(data["of"], data["reference"], shape, samples, fits)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        what = f"no entry {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"these are not closed forms of `kaem symbolic` ({what}). Run it again to make them anew."
        ) from error


def read_fits(path: str | PathLike[str]) -> Fits:
    """Return the closed forms in a `symbolic.json`."""
    path = Path(path)
    try:
        return from_json(parse_json(read_text(path, 2**25)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise UserError(
            f"could not read {path} ({error}); give the symbolic.json that `kaem symbolic` wrote."
        ) from error
