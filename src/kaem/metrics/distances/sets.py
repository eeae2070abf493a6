"""Distances as metrics: FID, KID and the proxy of two sets of samples, with all they were computed from."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...data.sheets import is_image
from ...errors import UserError
from ...models import AbstractModel
from ..inception.network import FEATURES
from ..metric import Entry, Metric, Request, Sets
from .frechet import frechet_distance, statistics
from .infinity import Extrapolation, fid_infinity, kid_infinity
from .kernel import kid
from .proxies import ProxyFeatures, precision_recall, width

_SUBSET = 1000  # of KID, as is customary
_PAIRWISE = 20_000  # of each set, for what compares all pairs
_MAX_GIGABYTES = 16  # that samples and their features may take


def sample_type(model: AbstractModel) -> np.dtype:
    """Return what samples are kept as: images as bytes, as they would be saved."""
    bytes_ = is_image(model.data_shape) and model.output == "sigmoid"
    return np.dtype(np.uint8 if bytes_ else np.float32)


def check_memory(model: AbstractModel, n: int, features: int = 0) -> None:
    """Raise if `n` samples, and so many `features` of each, would take too much memory."""
    samples = prod(model.data_shape) * sample_type(model).itemsize / 1e9
    # In double precision: as they are, as they were found, and about their mean.
    described = 3 * 8 * features / 1e9
    if n * (samples + described) > _MAX_GIGABYTES:
        raise UserError(
            f"{n} samples would take {n * samples:.0f} GB of memory and their features "
            f"{n * described:.0f} GB, expected at most {_MAX_GIGABYTES} GB in all; lower --samples "
            f"to {int(_MAX_GIGABYTES / (samples + described))} or less."
        )


def _check_inception(model: AbstractModel, request: Request) -> None:
    if model.data_shape[2:] != (3,):
        raise UserError(
            f"the model makes data of shape {model.data_shape}, expected RGB images: Inception has seen "
            "colour photographs only, and its distances mean nothing for grey images or tables. Use "
            "the proxy: leave --fid and --kid out."
        )
    check_memory(model, request.samples or 0, FEATURES)
    _ = request.extractor


def _check_proxy(model: AbstractModel, request: Request) -> None:
    check_memory(model, request.samples or 0, width(model.data_shape))


def _proxy(sets: Sets) -> dict[str, Entry]:
    _comparable(sets.real, sets.fake)
    features = ProxyFeatures.fit(sets.real)
    a, b = features(sets.real), features(sets.fake)
    known = {"extractor": "proxy: random filters and PCA of the reference"}
    value = frechet_distance(statistics(a), statistics(b))
    return {"proxy": {"value": value} | known} | _coverage("proxy_", a, b, known)


def _fid(sets: Sets) -> dict[str, Entry]:
    (a, b), known = sets.features, sets.extracted
    reference = statistics(a)
    return {
        "fid": {"value": frechet_distance(reference, statistics(b))} | known,
        "fid_infinity": _limit(fid_infinity, reference, b, sets.request) | known,
        **_coverage("" if sets.given else "inception_", a, b, known),
    }


def _kid(sets: Sets) -> dict[str, Entry]:
    a, b = (x[:_PAIRWISE] for x in sets.features)
    size = min(_SUBSET, len(a), len(b))
    known = sets.extracted | {"pairs": [len(a), len(b)]}
    value, error = kid(a, b, subset_size=size, seed=sets.request.seed)
    return {
        "kid": {"value": value, "error": error, "subset_size": size} | known,
        "kid_infinity": _limit(kid_infinity, a, b, sets.request) | known,
    }


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


def _coverage(prefix: str, a: np.ndarray, b: np.ndarray, known: Entry) -> dict[str, Entry]:
    a, b = a[:_PAIRWISE], b[:_PAIRWISE]
    more = known | {"k": 3, "pairs": [len(a), len(b)]}
    both = precision_recall(a, b)._asdict()
    return {f"{prefix}{name}": {"value": value} | more for name, value in both.items()}


def _limit(
    extrapolate: Callable[..., Extrapolation], a: Any, b: np.ndarray, request: Request
) -> Entry:
    """Return the extrapolation; where nobody asked for sizes and samples are too few, why there is none."""
    try:
        return extrapolate(a, b, sizes=request.sizes, seed=request.seed)._asdict()
    except UserError as error:
        if request.sizes is not None:
            raise
        return {"value": None, "why": str(error)}


PROXY = Metric(
    "a cheap Frechet distance of random filters, for any data; precision and recall",
    "samples",
    _proxy,
    usual=5_000,
    check=_check_proxy,
    flag="--proxy",
)
FID = Metric(
    "the Frechet distance of Inception's features, and its limit at infinity; precision and recall",
    "samples",
    _fid,
    usual=20_000,
    options=("weights", "sizes"),
    check=_check_inception,
    flag="--fid",
)
KID = replace(
    FID,
    help="the kernel distance of Inception's features, and its limit at infinity",
    compute=_kid,
    flag="--kid",
)
