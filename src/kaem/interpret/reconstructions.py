r"""What a model makes of examples: $x$, $\tilde x = G(z)$ for a draw $z \sim p(z\mid x)$, and what is left over."""

from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.sheets import is_image
from ..errors import UserError
from ..model import AbstractModel
from .figures import new_figure, save_figure
from .inference import explainable


class Reconstructions(NamedTuple):
    """Examples, what their latents decode to, and the mean squared error of a pixel of each."""

    x: Float[np.ndarray, "n ..."]
    made: Float[np.ndarray, "n ..."]
    squared_error: Float[np.ndarray, " n"]


def reconstructions(
    model: AbstractModel,
    x: Float[Array | np.ndarray, "n ..."],
    latents: Float[Array | np.ndarray, "n ..."],
) -> Reconstructions:
    """What the latents of examples decode to; `infer` finds them."""
    model, examples = explainable(model, x)
    x, made = np.asarray(examples), np.asarray(model.decode(jnp.asarray(latents)))
    error = np.mean((x - made) ** 2, axis=tuple(range(1, x.ndim)))
    return Reconstructions(x, made, error)


def _shown(image: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """As RGB or grey in [0, 1]."""
    low, high = scale
    image = np.clip((image - low) / (high - low), 0, 1)
    return image[..., 0] if image.shape[-1] == 1 else image


def reconstruction_sheet(found: Reconstructions, path: Path, count: int = 10) -> None:
    """Columns of an example, its reconstruction and their difference, for `count` evenly spaced ones.

    Evenly, because data files are often sorted by class.
    """
    if not is_image(found.x.shape[1:]):
        raise UserError(
            "reconstructions are drawn of images [height, width, 1 or 3 channels], got data of shape "
            f"{found.x.shape[1:]}."
        )
    chosen = np.unique(np.linspace(0, len(found.x) - 1, count).astype(int))
    x, tilde = found.x[chosen], found.made[chosen]
    scale = min(0.0, float(found.x.min())), max(1.0, float(found.x.max()))
    rows: list[tuple[str, Any, tuple[float, float]]] = [
        ("data $x$", x, scale),
        (r"made, $\tilde x$", tilde, scale),
        (r"$|x - \tilde x|$", np.abs(x - tilde), (0.0, scale[1] - scale[0])),
    ]
    width, height = 7.2 / 10, 7.2 / 10 * x.shape[1] / x.shape[2]
    made, axes = new_figure(max(3.4, width * len(x) + 0.5), 3 * height + 0.55, len(rows), len(x))
    for line, (label, images, limits) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(_shown(image, limits), cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(label, fontsize=8)
    for axis, error in zip(axes[-1], found.squared_error[chosen], strict=True):
        axis.set_xlabel(f"{error:.2g}", fontsize=7.5, labelpad=2)
    made.supxlabel(
        "mean squared error of a pixel; over all "
        f"{len(found.x)} examples {found.squared_error.mean():.3g}",
        fontsize=8,
    )
    made.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0.01, hspace=0.01)
    save_figure(made, path)
