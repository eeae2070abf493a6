"""What `kaem evaluate` does: every number with all that is needed to repeat it, or refuse it.

A metric is an entry of `details` with its value, its error where it has one, and what it was
computed from: extractor, hash of its weights, numbers of samples, hashes of both sets, seeds,
effort, versions. `results` is the same without the circumstances, one number for each name.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from math import isfinite, prod
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..baselines import NeuralEBM
from ..data.sheets import is_image
from ..errors import UserError
from ..files import digest
from ..model import AbstractModel
from .diagnostics import posterior_diagnostics
from .features import Extractor, checked_pair, extract
from .frechet import frechet_distance, statistics
from .inception import FEATURES
from .infinity import Extrapolation, fid_infinity, kid_infinity
from .kernel import kid as kernel_distance
from .likelihood import Method, log_likelihood, resolved
from .proxies import ProxyFeatures, precision_recall, width

Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
Entry = dict[str, Any]
_CHUNK = 1000  # samples drawn at once, as `kaem sample` does: one seed makes the same ones
_SUBSET = 1000  # of KID, as is customary
_MIXED = 1.05  # r_hat above which chains are not to be trusted
_PAIRWISE = 20_000  # of each set, for what compares all pairs
_MAX_GIGABYTES = 16  # that samples and their features may take


def check_memory(model: AbstractModel, n: int, *, inception: bool) -> None:
    """Raise if `n` samples and their features would take too much memory."""
    shape = model.data_shape
    samples = prod(shape) * _sample_type(model).itemsize / 1e9
    # In double precision: as they are, as they were found, and about their mean.
    features = 3 * 8 * (FEATURES if inception else width(shape)) / 1e9
    if n * (samples + features) > _MAX_GIGABYTES:
        raise UserError(
            f"{n} samples would take {n * samples:.0f} GB of memory and their features "
            f"{n * features:.0f} GB, expected at most {_MAX_GIGABYTES} GB in all; lower --samples "
            f"to {int(_MAX_GIGABYTES / (samples + features))} or less."
        )


def _sample_type(model: AbstractModel) -> np.dtype:
    bytes_ = is_image(model.data_shape) and model.output == "sigmoid"
    return np.dtype(np.uint8 if bytes_ else np.float32)


def drawn(model: AbstractModel, n: int, seed: int, report: Report | None = None) -> np.ndarray:
    """`n` samples: images as bytes, as they would be saved, other data as it is."""
    chunk = min(n, _CHUNK)
    draw = eqx.filter_jit(lambda model, key: model.sample(key, chunk))
    keys = jax.random.split(jax.random.key(seed), -(-n // chunk))
    found = np.empty((n, *model.data_shape), _sample_type(model))
    for start, key in zip(range(0, n, chunk), keys, strict=True):
        x = np.asarray(draw(model, key))[: n - start]
        found[start : start + chunk] = x * 255 + 0.5 if found.dtype == np.uint8 else x
        if report:
            report("samples", min(start + chunk, n), n)
    return found


def distances(
    real: np.ndarray,
    fake: np.ndarray,
    *,
    fid: bool = False,
    kid: bool = False,
    proxy: bool = False,
    extractor: Extractor | None = None,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    cache: Path | None = None,
    report: Report | None = None,
) -> dict[str, Entry]:
    """FID, KID and proxies of two sets of images, or of rows [n, D].

    FID and KID want an extractor; without one, `real` and `fake` are the features themselves.
    """
    about = {
        "reference": {"n": len(real), "sha256": digest(real)},
        "generated": {"n": len(fake), "sha256": digest(fake)},
        "seed": seed,
    }
    found: dict[str, Entry] = {}
    for name, x in (("the reference", real), ("the generated set", fake)):
        if len(x) < 2:
            raise UserError(f"{name} has {len(x)} sample, expected at least 2; give more.")
    if proxy:
        _comparable(real, fake)
        features = ProxyFeatures.fit(real)
        a, b = features(real), features(fake)
        circumstances = about | {"extractor": "proxy: random filters and PCA of the reference"}
        value = frechet_distance(statistics(a), statistics(b))
        found["proxy"] = {"value": value} | circumstances
        found |= _coverage("proxy_", a, b, circumstances)
    if not (fid or kid):
        return found
    a, b, circumstances = real, fake, about | {"extractor": "given features"}
    if extractor is not None:
        if report:
            report("features", 0, len(real) + len(fake))
        pair = checked_pair(real, fake, ("the reference", "the generated set"))
        a, b = (
            extract(
                x,
                extractor,
                cache=cache,
                progress=report and (lambda done, of, name=name: report(name, done, of)),
            )
            for name, x in zip(("features, real", "features, generated"), pair, strict=True)
        )
        circumstances = about | {"extractor": extractor.name, "weights_sha256": extractor.sha256}
    if fid:
        reference = statistics(a)
        found["fid"] = {"value": frechet_distance(reference, statistics(b))} | circumstances
        found["fid_infinity"] = (
            _limit(lambda: fid_infinity(reference, b, sizes=sizes, seed=seed), sizes)
            | circumstances
        )
        found |= _coverage("inception_" if extractor else "", a, b, circumstances)
    if kid:
        a, b = a[:_PAIRWISE], b[:_PAIRWISE]
        size = min(_SUBSET, len(a), len(b))
        used = circumstances | {"pairs": [len(a), len(b)]}
        value, error = kernel_distance(a, b, subset_size=size, seed=seed)
        found["kid"] = {"value": value, "error": error, "subset_size": size} | used
        found["kid_infinity"] = (
            _limit(lambda: kid_infinity(a, b, sizes=sizes, seed=seed), sizes) | used
        )
    return found


def _comparable(real: np.ndarray, fake: np.ndarray) -> None:
    """Raise unless both sets have one shape, and images one scale."""
    if real.shape[1:] != fake.shape[1:]:
        if real.ndim == fake.ndim == 4 and real.shape[3] == fake.shape[3]:
            remedy = "resize one of them, or both with --size N"
        else:
            remedy = (
                "compare with data of the same kind: grey with grey, RGB with RGB, as many columns"
            )
        raise UserError(
            f"the two sets hold samples of shapes {real.shape[1:]} and {fake.shape[1:]}, expected the "
            f"same; {remedy}."
        )
    if real.ndim < 3:
        return  # rows of a table have any scale
    for name, x in (("the reference", real), ("the generated set", fake)):
        low, high = float(np.min(x)), float(np.max(x))
        if x.dtype != np.uint8 and (low < 0 or high > 1):
            raise UserError(
                f"{name} has pixels from {low:.4g} to {high:.4g}, expected bytes (uint8), or floats in "
                "[0, 1]; divide 0 to 255 by 255, or take (x + 1) / 2 of -1 to 1."
            )
    tops = [float(np.max(x)) / (255 if x.dtype == np.uint8 else 1) for x in (real, fake)]
    if min(tops) <= 1 / 255 < max(tops):
        raise UserError(
            f"the two sets are scaled differently: the brightest pixels are {tops[0]:.2g} and "
            f"{tops[1]:.2g} of the largest possible. One was divided by 255 once too often, or numbers "
            "in [0, 1] were cast to bytes."
        )


def _coverage(prefix: str, a: np.ndarray, b: np.ndarray, circumstances: Entry) -> dict[str, Entry]:
    a, b = a[:_PAIRWISE], b[:_PAIRWISE]
    both = precision_recall(a, b)._asdict()
    more = circumstances | {"k": 3, "pairs": [len(a), len(b)]}
    return {f"{prefix}{name}": {"value": value} | more for name, value in both.items()}


def _limit(extrapolate: Callable[[], Extrapolation], sizes: Sequence[int] | None) -> Entry:
    """The extrapolation; where nobody asked for sizes and samples are too few, why there is none."""
    try:
        return extrapolate()._asdict()
    except UserError as error:
        if sizes is not None:
            raise
        return {"value": None, "why": str(error)}


_BOUNDS = ("importance", "ais")  # whose weights have the mean p(x)


def likelihood(
    model: AbstractModel,
    x: np.ndarray,
    method: Method,
    *,
    seed: int = 0,
    report: Report | None = None,
    **effort: int | None,
) -> tuple[dict[str, Entry], np.ndarray]:
    """log p(x) and bits per dimension, and the values of all examples."""
    spent = resolved(model, method, **effort)
    found = log_likelihood(
        model,  # type: ignore[arg-type]
        x,
        method=method,
        key=jax.random.key(seed),
        progress=report and (lambda done, of: report("log p(x)", done, of)),
        **effort,
    )
    about: Entry = {
        "method": method,
        "effort": spent._asdict(),
        "examples": {"n": len(x), "sha256": digest(x)},
        "seed": seed,
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
        if method not in _BOUNDS:
            weighed = log_likelihood(
                model,  # type: ignore[arg-type]
                x,
                method="importance",
                key=jax.random.key(seed),
            )
            bound = about["importance_bound"] = weighed.mean
        about["why"] = _collapse(model, method, found.mean, bound)
    return {
        f"log_marginal_{method}": _finite(nats) | about,
        f"bits_per_dimension_{method}": _finite(bits) | about,
    }, found.value


def _collapse(model: AbstractModel, method: Method, value: float, bound: float | None) -> str:
    """Why there is no error, what the value is worth then, which of two to believe, and what to try.

    Importance sampling and AIS average weights whose mean is p(x): by Markov's inequality they are
    more than b nats too high with a probability of at most e^-b. Chains that have not mixed promise
    nothing in either direction.
    """
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
    worth = (
        "it means little, since the normaliser of its prior is as uncertain"
        if isinstance(model, NeuralEBM)
        else "it is a lower bound, more than b nats too high with a probability of at most exp(-b)"
    )
    other = (
        "more --proposals raise it; ais gives another lower bound, and the larger is the better"
        if method == "importance"
        else "more --temperatures and --proposals raise it"
    )
    return (
        "for some examples fewer than four effective samples carry the weight, so that the value has "
        f"no error: {worth}; {other}. Estimates from chains (steppingstone, corrected, trapezoid) count "
        "only where they are larger and say that they have mixed."
    )


def _finite(entry: Entry) -> Entry:
    """JSON has no infinity: what is not finite is null."""
    return {name: value if isfinite(value) else None for name, value in entry.items()}


def posterior(
    model: AbstractModel, x: np.ndarray, *, seed: int = 0, **settings: Any
) -> tuple[dict[str, Entry], dict[str, Any]]:
    """How chains mix on the posteriors of examples, what the latents say, and where the prior is off."""
    settings = {"chains": 4, "steps": 200, "bins": 16} | settings
    found = posterior_diagnostics(model, x, key=jax.random.key(seed), **settings)  # type: ignore[arg-type]
    about: Entry = {
        "examples": {"n": len(x), "sha256": digest(x)},
        "seed": seed,
        "effort": settings,
    }
    values: dict[str, Entry] = {
        "chain_ess": {"value": float(np.median(found["ess"]))},
        "r_hat": {"value": float(np.max(found["r_hat"]))},
        "acceptance": {"value": float(np.mean(found["acceptance"]))},
        "active_latents": {"value": found["active_coordinates"]},
    }
    for name in ("information", "mismatch"):  # of all latents together
        error = float(np.sqrt(np.sum(np.square(found[f"{name}_error"]))))
        values[name] = _finite({"value": float(np.sum(found[name])), "error": error})
    if values["r_hat"]["value"] > _MIXED:
        about["why"] = (
            f"chains have not mixed (r_hat {values['r_hat']['value']:.2f}, above {_MIXED}): what they say "
            "about latents depends on where they started. Try more --steps."
        )
    return {name: entry | about for name, entry in values.items()}, found


def flat(details: dict[str, Entry]) -> dict[str, float]:
    """One number for each name; errors under the name with `_error`."""
    found = {}
    for name, entry in details.items():
        if entry["value"] is not None:
            found[name] = entry["value"]
            if entry.get("error") is not None:
                found[f"{name}_error"] = entry["error"]
    return found


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("kaem", "jax", "jaxlib", "numpy", "scipy")}
