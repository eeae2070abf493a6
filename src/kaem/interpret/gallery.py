"""A run to be drawn, with what several of its figures need computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..data.arrays import Split
from ..data.rows import Examples
from ..data.sheets import is_image
from ..errors import UserError
from ..runs.folder import RunFolder
from .curves import Place
from .influence import Influence, influence

EXPLAINED = 256  # examples whose latents are the aggregated posterior


@dataclass(frozen=True)
class Gallery:
    """A run, its model and data, and what to show of them; None leaves that to the figure."""

    run: RunFolder
    seed: int = 0
    source: str | None = None  # of data, if not the run's own
    split: Split = "train"
    count: int | None = None  # coordinates, or examples
    points: int | None = None  # images of a strip or path
    latents: tuple[Place, ...] = ()  # which coordinates, instead of the most influential
    between: str = "samples"  # or "data", "modes": the ends of an interpolation
    examples: tuple[int, ...] = ()  # which of the data, counted from 0

    @cached_property
    def model(self) -> Any:
        return self.run.model()

    def key(self, number: int) -> Any:
        """Return the random key of the figure that has this number."""
        return jax.random.fold_in(jax.random.key(self.seed), number)

    # What a figure may need of a model.

    @property
    def has_images(self) -> bool:
        return is_image(self.model.data_shape)

    @cached_property
    def has_latents(self) -> bool:
        return _possible(lambda: self.model.with_latents("a figure"))

    @cached_property
    def has_densities(self) -> bool:
        return _possible(lambda: self.model.readable("a figure"))

    # What several figures show.

    @cached_property
    def data(self) -> Examples:
        x = self.run.data(self.source, self.split, on_disk=True)
        if x.shape[1:] != self.model.data_shape:
            raise UserError(
                f"the model makes data of shape {self.model.data_shape}, but the data has examples of "
                f"shape {x.shape[1:]}; give data of the same shape with --data."
            )
        return x

    @cached_property
    def influence(self) -> Influence:
        return influence(self.model, self.key(0))

    def infer(self, x: np.ndarray, number: int) -> np.ndarray:
        """Return a posterior draw of the latents of each example, with the key of this number."""
        return self.model.with_latents("inference").infer(x, self.key(number)).latents

    @cached_property
    def explained(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples from all over the data, and their latents."""
        x = self.data[spread(len(self.data), EXPLAINED)]
        return x, self.infer(x, 1)

    def shown(self, count: int, most: int | None = None) -> np.ndarray:
        """Return the examples asked for, at most so many, or `count` from all over the data."""
        number = len(self.data)
        for i in self.examples[:most]:
            if not 0 <= i < number:
                raise UserError(f"there is no example {i}: the data has {number}, counted from 0.")
        return self.data[list(self.examples[:most]) or spread(number, count)]

    def places(self, count: int) -> list[Place]:
        """Return the coordinates asked for, or the most influential."""
        if not self.latents:
            return self.influence.places[: self.count or count]
        shape = self.model.readable("--latent").prior.shape
        for place in self.latents:
            if len(place) != len(shape) or not all(
                0 <= i < n for i, n in zip(place, shape, strict=True)
            ):
                got = ",".join(str(i + 1) for i in place)
                names = "Q,P" if len(shape) == 2 else "Q"
                raise UserError(
                    f"there is no latent {got}: give --latent {names} with numbers from 1 to "
                    f"{' and '.join(map(str, shape))}."
                )
        return list(self.latents)


def spread(number: int, count: int) -> np.ndarray:
    """Return `count` indices evenly spread over so many things, which may be sorted; or all of them."""
    return np.linspace(0, number - 1, min(count, number)).astype(int)


def _possible(hook: Callable[[], Any]) -> bool:
    try:
        hook()
    except UserError:
        return False
    return True
