r"""What a model loses in integers: its prior, its images, its bytes.

- The prior: $\sup_z |F(z) - \hat F(z)|$ of every latent, over all $2^{16}$ quantiles.
- Images: the same quantiles through both models, and the same latents through both generators.
  $\mathrm{PSNR} = 10\log_{10}(L^2/\mathrm{MSE})$ with the data's range $L$, and the structural similarity of Wang et al. (2004),
  $$\frac{(2\mu_x\mu_y + C_1)(2\sigma_{xy} + C_2)}{(\mu_x^2 + \mu_y^2 + C_1)(\sigma_x^2 + \sigma_y^2 + C_2)},\qquad
  C_1 = (0.01 L)^2,\ C_2 = (0.03 L)^2,$$
  its moments under an $11\times11$ Gaussian window of width 1.5, averaged over all windows within the image.
- Bytes, beside those of the same in float32: tables of F and of the density, and the generator's parameters.
- Their distribution: the Frechet distance of random filters (`metrics.proxies`) to data, before and after, or, without
  data, between both models, beside that of two sets of draws from the float model.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter

from ...data.sheets import is_image
from ...initialise import host_rng
from ...metrics.distances.proxies import proxy_distance
from ...models import KAEM
from .quantised import Quantised
from .tables import U_BITS, kolmogorov_smirnov

_WINDOW, _WIDTH = 5, 1.5  # radius and standard deviation of the window, in pixels
_CEILING = 1e-12  # least mean squared error over L^2 that is told from zero: 120 dB
_CHUNK = 128  # images at once

Images = Float[np.ndarray, "n H W C"]


def quality(
    model: KAEM,
    q: Quantised,
    samples: int = 1_000,
    *,
    key: PRNGKeyArray | None = None,
    data: ArrayLike | None = None,
) -> dict[str, Any]:
    """Return all of it, measured on `samples` draws; `data` are examples to compare distributions with.

    Of a model whose prior alone was quantised it is what concerns the prior.
    """
    if samples < 2:
        raise ValueError(f"quality is measured on at least 2 samples, got {samples}.")
    distance = kolmogorov_smirnov(model.prior, q.tables)
    table = model.prior.table
    result: dict[str, Any] = {
        "ks_largest": float(distance.max()),
        "ks_mean": float(distance.mean()),
        "prior_bytes": q.bytes["prior"],
        "prior_float_bytes": _bytes((table.lo, table.hi, table.knots, table.density)),
    }
    if not q.layers:
        return result
    rng = host_rng(jax.random.key(0) if key is None else key)
    return result | {
        "generator_bytes": q.bytes["generator"],
        "generator_float_bytes": _bytes(model.generator.trainable()),
        "samples": samples,
        **_images(model, q, rng.integers(0, 1 << U_BITS, (2, samples, len(q.tables.words))), data),
    }


def _images(
    model: KAEM, q: Quantised, u: Int[np.ndarray, "2 n L"], data: ArrayLike | None
) -> dict[str, float]:
    """Compare two sets of quantiles, the first for both models and the second for a comparison."""
    shape = (u.shape[1], *model.prior.shape)
    middles = ((u + 0.5) / (1 << U_BITS)).astype(np.float32)
    exact, again = (np.asarray(model.generate(part.reshape(shape)), np.float64) for part in middles)
    made = q.data(q.generate(u[0]))
    z = jnp.asarray(q.tables.latents(q.tables.look_up(u[0])).reshape(shape), jnp.float32)
    span = 1.0 if q.sigmoid is not None else float(np.ptp(exact))
    result: dict[str, float] = {}
    for name, reference in (("", exact), ("generator_", np.asarray(model.decode(z), np.float64))):
        result[f"{name}psnr"] = float(psnr(reference[None], made[None], span)[0])
        decibels = psnr(reference, made, span)
        result[f"{name}psnr_worst"] = float(decibels.min())
        result[f"{name}psnr_median"] = float(np.median(decibels))
        result[f"{name}share_below_30_db"] = float(np.mean(decibels < 30))
        if is_image(model.data_shape) and min(model.data_shape[:2]) > 2 * _WINDOW:
            similar = ssim(reference, made, span)
            result[f"{name}ssim"] = float(similar.mean())
            result[f"{name}ssim_worst"] = float(similar.min())
    if data is None:
        return result | {
            "proxy_between": proxy_distance(exact, made),
            "proxy_between_draws": proxy_distance(exact, again),
        }
    before, after = (proxy_distance(data, drawn) for drawn in (exact, made))
    return result | {"proxy_float": before, "proxy": after, "proxy_change": after - before}


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))


def psnr(
    x: Float[np.ndarray, "n ..."], y: Float[np.ndarray, "n ..."], span: float = 1.0
) -> Float[np.ndarray, " n"]:
    """Return the ratio of signal to noise of each of n pairs, in decibels; equal ones have 120."""
    error = np.mean((x - y) ** 2, axis=tuple(range(1, x.ndim))) / span**2
    return -10 * np.log10(np.maximum(error, _CEILING))


def ssim(x: Images, y: Images, span: float = 1.0) -> Float[np.ndarray, " n"]:
    """Return the structural similarity of each of n pairs, averaged over their channels."""
    if min(x.shape[1:3]) <= 2 * _WINDOW:
        raise ValueError(
            f"the windows of structural similarity have 11 x 11 pixels, got images of {x.shape[1:3]}."
        )
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    inside = slice(_WINDOW, -_WINDOW)

    def mean(values: Images) -> Images:
        sigma = (0, _WIDTH, _WIDTH, 0)
        return gaussian_filter(values, sigma, truncate=_WINDOW / _WIDTH)[:, inside, inside]

    found = []
    for start in range(0, len(x), _CHUNK):
        a, b = (part[start : start + _CHUNK].astype(np.float64) for part in (x, y))
        mean_a, mean_b = mean(a), mean(b)
        spread = mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2
        both = mean(a * b) - mean_a * mean_b
        brightness = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
        found.append((brightness * (2 * both + c2) / (spread + c2)).mean(axis=(1, 2, 3)))
    return np.concatenate(found)
