r"""What a model makes of examples: $x$, $\tilde x = G(z)$ for a draw $z \sim p(z\mid x)$, and what is left over."""

from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...data.checks import checked_finite
from ...data.sheets import is_image
from ...drawing import new_figure, save_figure
from ...errors import UserError
from ...models import AbstractModel
from ..gallery import EXPLAINED, Gallery, spread
from ..panels import show_image
from ._figure import Figure


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
    """Return what the latents of examples decode to; `model.infer` finds them."""
    model = model.with_latents("reconstructions")
    x, made = np.asarray(model.checked_data(x)), checked_finite(model.decode(jnp.asarray(latents)))
    error = np.mean((x - made) ** 2, axis=tuple(range(1, x.ndim)))
    return Reconstructions(x, made, error)


def reconstruction_sheet(found: Reconstructions, path: Path) -> None:
    """Draw columns of an example, its reconstruction and their difference."""
    if not is_image(found.x.shape[1:]):
        raise UserError(
            "reconstructions are drawn of images [height, width, 1 or 3 channels], got data of shape "
            f"{found.x.shape[1:]}."
        )
    x, tilde = found.x, found.made
    scale = min(0.0, float(x.min())), max(1.0, float(x.max()))
    rows: list[tuple[str, Any, tuple[float, float]]] = [
        ("data $x$", x, scale),
        (r"made, $\tilde x$", tilde, scale),
        (r"$|x - \tilde x|$", np.abs(x - tilde), (0.0, scale[1] - scale[0])),
    ]
    width, height = 7.2 / 10, 7.2 / 10 * x.shape[1] / x.shape[2]
    figure, axes = new_figure(max(3.4, width * len(x) + 0.5), 3 * height + 0.55, len(rows), len(x))
    for line, (label, images, limits) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=True):
            show_image(axis, (image - limits[0]) / (limits[1] - limits[0]))
        line[0].set_ylabel(label, fontsize=8)
    for axis, error in zip(axes[-1], found.squared_error, strict=True):
        axis.set_xlabel(f"{error:.2g}", fontsize=7.5, labelpad=2)
    figure.supxlabel(
        "mean squared error of a pixel; over all "
        f"{len(x)} examples {found.squared_error.mean():.3g}",
        fontsize=8,
    )
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
    save_figure(figure, path)


def _draw(gallery: Gallery, path: Path) -> Reconstructions:
    count = gallery.count or 10
    if gallery.examples or count > EXPLAINED:
        x = gallery.shown(count)
        latents = gallery.infer(x, 8)
    else:
        x, latents = gallery.explained
        chosen = spread(len(x), count)
        x, latents = x[chosen], latents[chosen]
    rebuilt = reconstructions(gallery.model, x, latents)
    reconstruction_sheet(rebuilt, path)
    return rebuilt


RECONSTRUCTIONS = Figure(
    about="examples, and what their posterior latents decode to (examples, 10)",
    draw=_draw,
    options=("count", "example", "data", "split"),
    caption="Data, what the model makes of them through a draw of their posterior latents, and the difference",
    section="Reconstructions",
    belongs=lambda gallery: gallery.has_images and gallery.has_latents,
)
