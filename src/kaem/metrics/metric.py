"""What a metric is, what may be asked of it, and what it is computed from.

A metric makes entries of `details`: each has a value, an error where it has one, and what it was
computed from. Sets of samples, or a model and examples, say that of themselves: hashes and numbers are
added to every entry. A name in `kaem.metrics.METRICS` is all that the command line needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..files import digest
from ..models import AbstractModel
from .inception.features import Extractor, checked_pair, extract
from .inception.weights import KNOWN

Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
Entry = dict[str, Any]
Draw = Callable[[Path], Any]


@dataclass(frozen=True)
class Request:
    """What may be asked of metrics beside their names; None is what is usual."""

    samples: int | None = None  # to draw
    examples: int | None = None  # of the data
    weights: str | None = None  # of Inception
    sizes: Sequence[int] | None = None  # to extrapolate from
    proposals: int | None = None  # or chains, or particles
    temperatures: int | None = None
    steps: int | None = None  # of chains
    target_error: float | None = None  # nats, of the log-likelihood of an example
    budget: int | None = None  # passes of the generator for an example
    seed: int = 0
    cache: Path | None = None  # a folder for features
    report: Report | None = None
    say: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        for name in ("samples", "examples", "proposals", "temperatures", "steps", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, got {value}.")
        if self.target_error is not None and not self.target_error > 0:
            raise UserError(f"--target-error must be positive, in nats, got {self.target_error}.")

    @cached_property
    def extractor(self) -> Extractor:
        """Inception, found and checked when it is first asked for: before anything long begins."""
        extractor = Extractor(self.weights)
        if extractor.sha256 not in KNOWN:
            self.say(
                f"note: {extractor.path} has the right shapes but is no published file of these weights; "
                "its numbers compare with numbers from the same file only"
            )
        return extractor


def _known(x: np.ndarray) -> Entry:
    return {"n": len(x), "sha256": digest(x)}


@dataclass(frozen=True)
class Sets:
    """Two sets of samples, and features of theirs that several metrics share."""

    real: np.ndarray
    fake: np.ndarray
    request: Request = field(default_factory=Request)
    figures: dict[str, Draw] = field(default_factory=dict)  # by file name: what a metric would draw

    def __post_init__(self) -> None:
        for name, x in (("the reference", self.real), ("the generated set", self.fake)):
            if len(x) < 2:
                raise UserError(f"{name} has {len(x)} sample, expected at least 2; give more.")

    @cached_property
    def about(self) -> Entry:
        """Which sets these are."""
        sets = {"reference": _known(self.real), "generated": _known(self.fake)}
        return sets | {"seed": self.request.seed}

    @property
    def given(self) -> bool:
        """Whether the samples are features themselves, rows [n, D]."""
        return self.real.ndim == self.fake.ndim == 2

    @cached_property
    def features(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, D] of both sets: Inception's of images, or those that were given."""
        if self.given:
            return self.real, self.fake
        extractor, cache, report = self.request.extractor, self.request.cache, self.request.report
        if report:
            report("features", 0, len(self.real) + len(self.fake))
        real, fake = checked_pair(self.real, self.fake, ("the reference", "the generated set"))

        def features(x: np.ndarray, which: str) -> np.ndarray:
            progress = report and partial(report, f"features, {which}")
            return extract(x, extractor, cache=cache, progress=progress)

        return features(real, "real"), features(fake, "generated")

    @property
    def extracted(self) -> Entry:
        """What `features` come from."""
        if self.given:
            return {"extractor": "given features"}
        extractor = self.request.extractor
        return {"extractor": extractor.name, "weights_sha256": extractor.sha256}


@dataclass(frozen=True)
class Examples:
    """A model, and examples of the data [n, *data_shape] to ask it about."""

    model: AbstractModel
    x: np.ndarray
    request: Request = field(default_factory=Request)
    figures: dict[str, Draw] = field(default_factory=dict)

    @cached_property
    def about(self) -> Entry:
        """Which examples these are."""
        return {"examples": _known(self.x), "seed": self.request.seed}


@dataclass(frozen=True)
class Metric:
    """A measurement of a run, or of two sets of samples.

    `compute` makes entries of `Sets`, for a metric of samples, or of `Examples`. `check` raises before
    anything long begins if a model cannot be measured.
    """

    help: str  # one line
    of: Literal["samples", "examples"]
    compute: Callable[[Any], dict[str, Entry]]
    usual: int = 100  # how many of them are taken unless one says otherwise
    options: tuple[str, ...] = ()  # of a `Request`, beside that number
    check: Callable[[AbstractModel, Request], Any] = lambda model, request: None
    flag: str | None = None  # of the command line, beside --metric NAME

    def takes(self, option: str) -> bool:
        """Whether an option of a request changes this metric."""
        return option == self.of or option in self.options

    def entries(self, source: Sets | Examples) -> dict[str, Entry]:
        """Return what was found, with what it was computed from."""
        about = source.about
        return {name: entry | about | entry for name, entry in self.compute(source).items()}


def finite(entry: Entry) -> Entry:
    """Return an entry of numbers for JSON, which has no infinity: what is not finite is null."""
    return {name: value if isfinite(value) else None for name, value in entry.items()}
