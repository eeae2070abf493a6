r"""Augmentation: images that are seen a little differently at every visit.

A generator that has seen each of a few thousand images some seventy times learns them by heart: it is
sharp at their latents, and not between them, where samples are. An image that is moved by a pixel or
two, or mirrored, is about as likely as the image itself, and is not the one that was seen before. What
that is worth, and where it made samples worse: docs/explanation/encoder.md.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, Shaped


@dataclass(frozen=True)
class Augmentation:
    """What is done at random to the images of an update; images [H, W, C] alone can be."""

    shift: int = 0  # pixels by which an image is moved at most, each way; its border is reflected
    mirror: bool = False  # left and right are exchanged in every second image

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"augmentation.shift must not be negative, got {self.shift}.")

    @property
    def active(self) -> bool:
        """Return whether anything is done at all."""
        return self.shift > 0 or self.mirror

    def check(self, data_shape: tuple[int, ...], *, persistent: bool) -> None:
        """Raise if this cannot be done to data of a shape, or for a learner that remembers latents."""
        if not self.active:
            return
        if len(data_shape) != 3 or min(data_shape[:2]) <= self.shift:
            raise ValueError(
                "augmentation is for images [H, W, C] larger than their shift, got data of shape "
                f"{tuple(data_shape)} and a shift of {self.shift}; set augmentation.shift=0 and "
                "augmentation.mirror=false."
            )
        if persistent:
            raise ValueError(
                "persistent chains keep the latents of each example from one visit to the next, which "
                "augmentation changes in between; set augmentation.shift=0 and "
                "augmentation.mirror=false, or learner.persistent=false."
            )

    def __call__(self, x: Shaped[Array, "B H W C"], key: PRNGKeyArray) -> Shaped[Array, "B H W C"]:
        """Return the images of an update as it sees them."""
        if not self.active:
            return x
        to_shift, to_mirror = jax.random.split(key)
        if self.mirror:
            turned = jax.random.bernoulli(to_mirror, shape=(len(x), 1, 1, 1))
            x = jnp.where(turned, x[:, :, ::-1], x)
        if self.shift:
            margin = (self.shift, self.shift)
            padded = jnp.pad(x, ((0, 0), margin, margin, (0, 0)), mode="reflect")
            corners = jax.random.randint(to_shift, (len(x), 2), 0, 2 * self.shift + 1)
            x = jax.vmap(
                lambda image, corner: jax.lax.dynamic_slice(image, (*corner, 0), x.shape[1:])
            )(padded, corners)
        return x
