"""The figures of a run by name, with what several of them need computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..data.arrays import Split
from ..errors import UserError
from ..metrics.diagnostics import comparable
from ..serialisation import load
from ..training.run import Run, evaluation_data
from .curves import Place
from .densities import density_sheet
from .evolution import evolution
from .figures import training_curves
from .inference import infer
from .influence import Influence, draw_influence, influence, readable
from .interpolation import draw_interpolation, interpolation, mode_pair, sample_pair
from .power_posterior_figure import power_posterior_figure
from .power_posteriors import power_posteriors
from .reconstructions import reconstruction_sheet, reconstructions
from .temperatures import temperature_figure, temperatures, trapezoids
from .traversal import draw_traversal, traversal

_EXPLAINED = 256  # examples whose latents are the aggregated posterior


@dataclass(frozen=True)
class Choices:
    """What a figure shows of what it could; None leaves it to the figure."""

    count: int | None = None  # coordinates, or examples
    points: int | None = None  # images of a strip or path
    latents: tuple[Place, ...] = ()  # which coordinates, instead of the most influential
    between: str = "samples"  # or "data", "modes": the ends of an interpolation
    examples: tuple[int, ...] = ()  # which of the data, counted from 0


@dataclass(frozen=True)
class Gallery:
    """A run, its model, and what is known about it."""

    run: Run
    seed: int = 0
    source: str | None = None  # of data, if not the run's own
    split: Split = "train"

    @cached_property
    def model(self) -> Any:
        return load(self.run.model_file)

    def _key(self, number: int) -> Any:
        return jax.random.fold_in(jax.random.key(self.seed), number)

    @cached_property
    def data(self) -> np.ndarray:
        x = evaluation_data(self.run.config(), self.source, self.split)
        if x.shape[1:] != self.model.data_shape:
            raise UserError(
                f"the model makes data of shape {self.model.data_shape}, but the data has examples of "
                f"shape {x.shape[1:]}; give data of the same shape with --data."
            )
        return x

    @cached_property
    def influence(self) -> Influence:
        return influence(self.model, self._key(0))

    @cached_property
    def explained(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples from all over the data, and their latents."""
        x = self._spread(_EXPLAINED)
        return x, infer(self.model, x, self._key(1)).latents

    def _spread(self, count: int) -> np.ndarray:
        """Examples from all over the data, which may be sorted."""
        if count < 1:
            raise UserError(f"--count must be at least 1, got {count}.")
        return self.data[np.linspace(0, len(self.data) - 1, min(count, len(self.data))).astype(int)]

    def _examples(self, given: tuple[int, ...], count: int) -> np.ndarray:
        """Those asked for, or `count` of them."""
        if not given:
            return self._spread(count)
        for i in given:
            if not 0 <= i < len(self.data):
                raise UserError(
                    f"there is no example {i}: the data has {len(self.data)}, counted from 0."
                )
        return self.data[list(given)]

    def _places(self, choices: Choices, count: int) -> list[Place]:
        """The coordinates asked for, or the most influential."""
        if not choices.latents:
            return self.influence.places[: choices.count or count]
        shape = readable(self.model, "--latent").prior.shape
        for place in choices.latents:
            inside = len(place) == len(shape) and all(
                0 <= i < n for i, n in zip(place, shape, strict=True)
            )
            if not inside:
                got = ",".join(str(i + 1) for i in place)
                names = "Q,P" if len(shape) == 2 else "Q"
                raise UserError(
                    f"there is no latent {got}: give --latent {names} with numbers from 1 to "
                    f"{' and '.join(map(str, shape))}."
                )
        return list(choices.latents)

    def densities(self, path: Path, choices: Choices) -> Any:
        prior = readable(self.model, "densities").prior
        order = [int(np.ravel_multi_index(p, prior.shape)) for p in self._places(choices, 24)]
        by = None if choices.latents else "influence on the output"
        try:
            _, latents = self.explained
        except (UserError, OSError):
            if self.source is not None:
                raise
            latents = None  # the run's own data are not on this machine any more
        return density_sheet(
            prior, path, len(order), order=order, ordered_by=by, latents=latents, key=self._key(2)
        )

    def influences(self, path: Path, choices: Choices) -> Any:
        draw_influence(self.influence, path, choices.count or 30)
        return self.influence

    def traversal(self, path: Path, choices: Choices) -> Any:
        model = readable(self.model, "traversal", images=True)
        base, others = None, "their medians"
        if choices.examples:
            z = infer(model, self._examples(choices.examples[:1], 1), self._key(3)).latents
            base, others = model.prior.cdf(jnp.asarray(z[0])), f"example {choices.examples[0]}"
        # Latents of one q do nearly the same: each q is shown once, by the one that does most.
        places = self._places(choices, 5) if choices.latents else self.influence.leading(choices.count or 5)  # fmt: skip
        found = traversal(self.model, places, choices.points or 11, base)
        draw_traversal(found, path, others)
        return found

    def interpolation(self, path: Path, choices: Choices) -> Any:
        model = readable(self.model, "interpolation", images=True)
        if choices.between == "data":
            if len(choices.examples) not in (0, 2):
                raise UserError(
                    f"an interpolation has two ends: give --example twice, got {len(choices.examples)}."
                )
            ends = infer(model, self._examples(choices.examples, 2), self._key(4)).latents
            a, b, what = *ends, "latents of two data points"
        elif choices.between == "modes":
            a, b, what = *mode_pair(model), "every latent at its mode, and at low density"
        else:
            a, b, what = *sample_pair(model, self._key(5)), "two samples of the prior"
        found = interpolation(model, a, b, choices.points or 9, self.influence)
        draw_interpolation(found, path, what)
        return found

    def power_posteriors(self, path: Path, choices: Choices) -> Any:
        comparable(self.model)
        x = self._examples(choices.examples[:1], 3)
        found = power_posteriors(self.model, x[len(x) // 2], self._key(6))
        power_posterior_figure(self.model, found, path)
        return found

    def temperatures(self, path: Path, choices: Choices) -> Any:
        found = temperatures(self.run)
        x = self._examples(choices.examples, choices.count or 4)
        bins = trapezoids(readable(self.model, "temperatures"), x, found.ladder[-1], self._key(7))
        temperature_figure(found, path, bins)
        return found

    def reconstructions(self, path: Path, choices: Choices) -> Any:
        count = choices.count or 10
        if choices.examples or count > _EXPLAINED:
            x = self._examples(choices.examples, count)
            latents = infer(self.model, x, self._key(8)).latents
        else:
            x, latents = self.explained
            chosen = np.linspace(0, len(x) - 1, min(count, len(x))).astype(int)
            x, latents = x[chosen], latents[chosen]
        found = reconstructions(self.model, x, latents)
        reconstruction_sheet(found, path, len(x))
        return found

    def evolution(self, path: Path, choices: Choices) -> Any:
        del choices
        return evolution(self.run.samples, path)

    def training(self, path: Path, choices: Choices) -> Any:
        del choices
        return training_curves(self.run.history(), path)


FIGURES: dict[str, Callable[[Gallery, Path, Choices], Any]] = {
    "densities": Gallery.densities,
    "traversal": Gallery.traversal,
    "interpolation": Gallery.interpolation,
    "influence": Gallery.influences,
    "power-posteriors": Gallery.power_posteriors,
    "temperatures": Gallery.temperatures,
    "reconstructions": Gallery.reconstructions,
    "evolution": Gallery.evolution,
    "training": Gallery.training,
}
