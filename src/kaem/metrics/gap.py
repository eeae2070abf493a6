r"""Where a model loses: the distance to data of what one generator makes of several laws of the latents.

Latents of up to 1,000 examples are inferred; images of them, and of latents drawn in other ways, are
compared with as many others. From the law that is furthest from the posterior to the posterior itself:

- *prior*: draws of the model's own prior, which is what `sample` decodes;
- *marginals*: every coordinate of the inferred latents for itself, all dependence removed by shuffling;
- *gaussian*: a normal with their mean and covariance: linear dependence, and no shape;
- *aligned*: shuffled in the coordinates in which they are most nearly independent (`kaem align`);
- *posterior*: the inferred latents: reconstructions of held-out examples.

What the prior costs is the first minus the last; what remains, against *data*, which are the examples of
the first part themselves, is the generator's.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..data.checks import checked_finite
from ..errors import UserError
from ..models import AbstractModel, LatentModel
from ..priors.alignment import unmix
from . import figures
from .distances.frechet import frechet_distance, statistics
from .distances.proxies import ProxyFeatures
from .distances.sets import sample_type
from .inception.features import extract
from .metric import Entry, Examples, Metric, Request

LAWS = ("prior", "marginals", "gaussian", "aligned", "posterior")
_CHUNK = 100  # latents decoded at once
_MOST = 1_000  # examples in either part
Latents = Float[np.ndarray, "n D"]


def laws(
    model: LatentModel, latents: Float[np.ndarray, "n ..."], seed: int
) -> dict[str, Float[np.ndarray, "n ..."]]:
    """Return as many latents of each law as were inferred, by name."""
    rng, n = np.random.default_rng(seed), len(latents)
    flat: Latents = np.asarray(latents, np.float64).reshape(n, -1)

    def shuffled(z: Latents) -> Latents:
        return np.stack([rng.permutation(column) for column in z.T], axis=1)

    mixing, offset = unmix(flat)
    sources = np.linalg.solve(mixing, (flat - offset).T).T
    root = np.linalg.cholesky(
        np.cov(flat.T).reshape(flat.shape[1], -1) + 1e-9 * np.eye(flat.shape[1])
    )
    found = {
        "prior": np.asarray(model.prior.sample(jax.random.key(seed), n)).reshape(n, -1),
        "marginals": shuffled(flat),
        "gaussian": flat.mean(axis=0) + rng.normal(size=flat.shape) @ root.T,
        "aligned": offset + shuffled(sources) @ mixing.T,
        "posterior": flat,
    }
    return {name: z.reshape(latents.shape).astype(np.float32) for name, z in found.items()}


def _decoded(model: LatentModel, z: Float[np.ndarray, "n ..."]) -> np.ndarray:
    """Return what latents make, as samples are kept."""
    made = np.empty((len(z), *model.data_shape), sample_type(model))
    for start in range(0, len(z), _CHUNK):
        rows = np.arange(start, start + _CHUNK) % len(z)  # one shape is compiled once
        x = checked_finite(model.decode(jnp.asarray(z[rows])))[: len(z) - start]
        made[start : start + _CHUNK] = x * 255 + 0.5 if made.dtype == np.uint8 else x
    return made


def _features(source: Examples, reference: np.ndarray) -> tuple[partial[np.ndarray], Entry]:
    """Return what describes samples: Inception of RGB images where it is found, else the proxy."""
    request = source.request
    if source.model.data_shape[2:] == (3,):
        try:
            inception = request.extractor
        except UserError as error:
            if request.weights is not None:
                raise
            request.say(f"note: the gap is measured by the proxy, since {error}")
        else:
            known = {"extractor": inception.name, "weights_sha256": inception.sha256}
            return partial(extract, extractor=inception, cache=request.cache), known
    known = {"extractor": "proxy: random filters and PCA of the reference"}
    return partial(ProxyFeatures.fit(reference).__call__), known


def _gap(source: Examples) -> dict[str, Entry]:
    model = source.model.with_latents("the gap between prior and posterior").prepared()
    x, report = source.x, source.request.report
    half = min(len(x) // 2, _MOST)
    if half < 2:
        raise UserError(f"the gap needs at least 4 examples, got {len(x)}; raise --examples.")
    # Data may come in an order, of which neither part may take a piece.
    order = np.random.default_rng(source.request.seed).permutation(len(x))
    mine, reference = x[order[:half]], x[order[half : 2 * half]]
    if sample_type(model) == np.uint8 and x.dtype != np.uint8:
        mine, reference = ((part * 255 + 0.5).astype(np.uint8) for part in (mine, reference))
    features, known = _features(source, reference)
    inferred = model.infer(mine, jax.random.key(source.request.seed)).latents
    made = {
        name: _decoded(model, z) for name, z in laws(model, inferred, source.request.seed).items()
    }
    goal = statistics(features(reference))
    distances = {}
    for done, (name, samples) in enumerate(({**made, "data": mine}).items()):
        distances[name] = frechet_distance(goal, statistics(features(samples)))
        if report:
            report("gap", done + 1, len(made) + 1)
    source.figures["gap.png"] = partial(
        figures.gap, distances, "FID" if "weights_sha256" in known else "proxy"
    )
    about = known | {"n": half}
    return {f"gap_{name}": {"value": value} | about for name, value in distances.items()}


def _check(model: AbstractModel, request: Request) -> None:
    model.with_latents("the gap between prior and posterior")


GAP = Metric(
    "where samples are lost: distances of draws of the prior, of marginals, aligned, and of reconstructions",
    "examples",
    _gap,
    usual=10_000,
    options=("weights",),
    check=_check,
    flag="--gap",
)
