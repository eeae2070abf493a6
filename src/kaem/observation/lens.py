r"""A lens: the likelihood sees what a generator draws through a linear map $B$.

$$p(x\mid z) = \mathcal{N}\big(x;\; \mu + B\,(G(z)-\mu),\; \sigma^2 I\big),\qquad B = D^\top \mathrm{diag}(b)\, D$$

with the mean image $\mu$ of the data, the cosine transform $D$ and a transfer $b$ that depends on the
frequency alone. It is a normal density of $x$ like any other. What it changes is what the generator
learns: without a lens, the best $G(z)$ is the mean of all images that $z$ may stand for, which is
blurred; with it, the blurred one is what the lens shows, and $G(z)$ may be as sharp as the data. Samples
and reconstructions are $G(z)$. What all images have in common, $\mu$, is not blurred, and passes as it is.

`focused` finds $b$ in closed form. At a frequency where images $x$ and the means $r$ of their latents
have the covariance $c$ and variances $v_x$, $v_r$, the means lack contrast by the coherence
$\rho = c/\sqrt{v_x v_r}$ (for exact means, $v_r = \rho^2 v_x$), and are grain but for the share $w = \min(c/v_r, 1)$. Hence
$$\frac1b = \frac{w}{\rho}\;\frac{\rho^8}{\rho^8 + \epsilon^4},$$
which is $1/\rho$ where the means know more than a share $\epsilon$ of the image, and soon less than 1, so that
grain fades, where they know less. The brightness of an image passes unchanged.
"""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..initialise import as_array
from ..methods import FIXED


class Lens(eqx.Module):
    """A transfer for each frequency of images [H, W, C]."""

    transfer: Float[Array, " R"] = eqx.field(metadata=FIXED)  # b, from the lowest frequency up
    mean: Float[Array, "H W C"] = eqx.field(metadata=FIXED)  # mu
    data_shape: tuple[int, ...] = eqx.field(static=True)
    most: float = eqx.field(static=True)
    coherence: float = eqx.field(static=True)

    def __init__(
        self, data_shape: tuple[int, ...], *, most: float = 3.0, coherence: float = 0.08
    ) -> None:
        r"""Make a lens that changes nothing yet.

        **Arguments:** `most` is by how much `focused` raises or lowers a contrast at the most;
        `coherence` is $\epsilon$, the squared coherence below which a frequency counts as grain.
        """
        self.data_shape, self.most, self.coherence = tuple(data_shape), most, coherence
        self.transfer = as_array(np.ones(self._rings().max() + 1 if len(data_shape) == 3 else 1))
        self.mean = as_array(np.zeros(self.data_shape))

    def __check_init__(self) -> None:
        if len(self.data_shape) != 3:
            raise ValueError(
                f"a lens is for images [H, W, C], got data of shape {self.data_shape}; leave it out "
                "(lens.kind = none)."
            )
        if not self.most >= 1 or not self.coherence > 0:
            raise ValueError(
                "a lens needs `most` of at least 1 and a positive `coherence`, got "
                f"{self.most} and {self.coherence}."
            )
        # The mean image first, which is there: rings of a shape that is not would fill any memory.
        fits = self.mean.shape == self.data_shape
        entries = int(self._rings().max()) + 1 if fits else 0
        if self.transfer.shape != (entries,) or not fits:
            raise ValueError(
                f"a lens for images of shape {self.data_shape} has a transfer of shape {(entries,)} and "
                f"a mean image, got shapes {self.transfer.shape} and {self.mean.shape}."
            )
        if not isinstance(self.transfer, jax.core.Tracer) and not (self.transfer > 0).all():
            raise ValueError("a lens needs a transfer of positive numbers.")

    def __call__(self, images: Float[Array, "*n H W C"]) -> Float[Array, "*n H W C"]:
        """Return images as the likelihood sees them."""
        rows, columns = (jnp.asarray(cosines(size)) for size in self.data_shape[:2])
        seen = self.transfer[self._rings()][..., None] * _along(images - self.mean, rows, columns)
        return self.mean + _along(seen, rows.T, columns.T)

    def focused(
        self, x: Float[Array | np.ndarray, "n H W C"], drawn: Float[Array | np.ndarray, "n H W C"]
    ) -> Self:
        """Return the lens for examples `x` and what a generator has `drawn` of their latents."""
        rows, columns = (cosines(size) for size in self.data_shape[:2])
        seen = self(jnp.asarray(drawn, jnp.float32))
        of_x, of_means = (
            _along(part - part.mean(axis=0), rows, columns)
            for part in (np.asarray(x, np.float64), np.asarray(seen, np.float64))
        )
        tiny = np.finfo(np.float32).tiny
        v_x, v_r = (np.maximum(self._pooled(part**2), tiny) for part in (of_x, of_means))
        c = np.maximum(self._pooled(of_x * of_means), 0.0)
        rho, epsilon = np.minimum(c / np.sqrt(v_x * v_r), 1.0), self.coherence
        # Where means lag behind the images, with a share above 1, learning will raise them.
        gain = np.minimum(c / v_r, 1.0) * rho**7 / (rho**8 + epsilon**4)
        transfer = 1 / np.clip(gain, 1 / self.most, self.most)
        transfer[0] = 1.0
        new = (as_array(transfer), as_array(np.asarray(x, np.float64).mean(axis=0)))
        return eqx.tree_at(lambda lens: (lens.transfer, lens.mean), self, new)

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of this lens."""
        gain = 1 / np.asarray(self.transfer)
        return [
            (
                "lens",
                f"contrasts are drawn {gain.min():.2f} to {gain.max():.2f} times as strong as seen",
            )
        ]

    def _rings(self) -> np.ndarray:
        """Return which entry of `transfer` each pair of cosines has."""
        height, width, _ = self.data_shape
        longest = max(height, width)
        rows, columns = np.arange(height) * longest / height, np.arange(width) * longest / width
        return np.rint(np.hypot(rows[:, None], columns[None])).astype(np.int32)

    def _pooled(self, values: Float[np.ndarray, "n H W C"]) -> Float[np.ndarray, " R"]:
        """Return sums over examples, channels and the pairs of cosines of each ring."""
        return np.bincount(self._rings().ravel(), values.sum(axis=(0, 3)).ravel())


def cosines(size: int) -> Float[np.ndarray, "size size"]:
    """Return the orthogonal matrix of the cosine transform (DCT-II): a row for each frequency."""
    frequency, place = np.arange(size)[:, None], np.arange(size)[None]
    matrix = np.cos(np.pi * frequency * (place + 0.5) / size) * np.sqrt(2 / size)
    matrix[0] /= np.sqrt(2)
    return matrix.astype(np.float32)


def _along(x: Any, rows: Any, columns: Any) -> Any:
    """Return images with their columns multiplied by one matrix, and their rows by the other."""
    einsum: Any = np.einsum if isinstance(x, np.ndarray) else jnp.einsum
    return einsum("lw,...kwc->...klc", columns, einsum("kh,...hwc->...kwc", rows, x))
