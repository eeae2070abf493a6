"""What models need between updates: tables fine enough for a prior, and grids where its latents are."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ..bases import transfer
from ..initialise import as_array
from .parameters import named, with_parameters, without, zeros

_SQUARES = ("nu", "sum_of_squares")  # what optax calls running means of squared gradients


@dataclass(frozen=True)
class Grid:
    """When and how the grids of Kolmogorov-Arnold functions follow the latents (Table hp-nist)."""

    prior: bool = True
    generator: bool = True
    interval: int = 100  # updates between grid updates ...
    decay: float = 0.999  # ... whose frequency decays by this factor per update
    ratio: float = 0.05  # uniform part of the new grid
    samples: int = 1000  # of the prior, that grids are adapted to

    def __post_init__(self) -> None:
        for name in ("interval", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"grid.{name} must be positive, got {getattr(self, name)}.")
        if not (0 < self.decay <= 1 and 0 < self.ratio <= 1):
            raise ValueError(
                f"grid.decay and grid.ratio must be in (0, 1], got {self.decay} and {self.ratio}."
            )

    def steps(self, total: int) -> list[int]:
        """Return when grids move: 0, then at intervals whose frequency decays, t + interval / decay^t."""
        found, t = [], 0
        while t < total and (self.prior or self.generator):
            found.append(t)
            t += max(1, round(self.interval / self.decay**t))
        return found


@dataclass(frozen=True)
class Upkeep:
    """How exact tables are kept while a model learns, and when grids move."""

    tolerance: float = 1e-4  # on the CDF while training; sampling afterwards uses 2e-7
    score_tolerance: float = 0.1  # on the tabulated score, as a share of the tilt, for chains
    alignments: int = (
        0  # how often the prior is moved to where an encoder's latents are, last at the end
    )
    aligned_examples: int = 20_000  # whose latents say where that is
    focusings: int = 3  # how often a lens is adjusted, in the last third of the updates
    focused_examples: int = 2000  # whose reconstructions say how
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self) -> None:
        for name in ("tolerance", "score_tolerance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"upkeep.{name} must be positive, got {getattr(self, name)}.")
        for number, examples in (("alignments", "aligned"), ("focusings", "focused")):
            often, some = getattr(self, number), getattr(self, f"{examples}_examples")
            if often < 0 or some < 2:
                raise ValueError(
                    f"upkeep.{number} must not be negative and upkeep.{examples}_examples be at least 2, "
                    f"got {often} and {some}."
                )

    def aligning_steps(self, total: int) -> set[int]:
        """Return after which of `total` updates the prior is aligned."""
        often = min(self.alignments, total)  # more than once after an update is once
        return {round(total * k / often) for k in range(1, often + 1)} - {0}

    def focusing_steps(self, total: int) -> set[int]:
        """Return after which of `total` updates a lens is adjusted.

        Not before the means are worth sharpening, and not at the end: the generator has to follow.
        """
        often = min(self.focusings, total)
        share = total / 3 / max(1, often)
        return {round(total * 2 / 3 + share * k) for k in range(often)} - {0}


def is_new(model: Any) -> bool:
    """Return whether a model seems to have learned nothing yet: nothing is prepared, and no grid has moved."""
    if len(jax.tree.leaves(model)) != len(jax.tree.leaves(model.trainable())):
        return False
    grids = [np.asarray(leaf) for name, leaf in named(model).items() if name.endswith(".grid")]
    return all(np.ptp(np.diff(grid), axis=-1).max() < 1e-3 * np.ptp(grid) for grid in grids)


def carried(optimiser: Any, before: Any, after: Any) -> Any:
    """Return running means of gradients in terms of the coefficients on new grids.

    The old coefficients that make the same function are $c = R c'$, so a gradient becomes $R^\\top g$,
    and squared gradients, which are kept without their correlations, $(R^2)^\\top g^2$.
    """
    old, new = named(before), named(after)
    maps = {
        name.removesuffix(".grid") + ".coefficients": transfer(
            _owner(after, name), _owner(before, name)
        )
        for name in old
        if name.endswith(".grid") and not np.array_equal(old[name], new[name])
    }

    def carry(path: Any, leaf: Any) -> Any:
        keys = _keys(path)
        matrix = next((maps[key] for key in keys if key in maps), None)
        if matrix is None or getattr(leaf, "ndim", 0) != 3:
            return leaf
        linear = matrix**2 if _are_squares(keys, leaf) else matrix
        moments = np.asarray(leaf, np.float64).transpose(1, 0, 2) @ linear
        return as_array(moments.transpose(1, 0, 2))

    return jax.tree_util.tree_map_with_path(carry, optimiser)


def turned(optimiser: Any, model: Any, alignment: Any) -> Any:
    """Return running means of gradients in the coordinates of an `alignment` of the prior.

    Whatever an optimiser keeps by the names of parameters is put in their places, for the model to say
    what becomes of it.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(optimiser)
    own, nothing = named(model), zeros(model)
    groups: dict[
        Any, dict[str, int]
    ] = {}  # by what holds them: names of parameters, and which leaves
    for i, (path, leaf) in enumerate(leaves):
        for key in path:
            name = getattr(key, "key", None)
            if name in own and np.shape(leaf) == own[name].shape:
                groups.setdefault(tuple(k for k in path if k is not key), {})[name] = i
    found = [leaf for _, leaf in leaves]
    for holder, group in groups.items():
        means = {name: found[i] for name, i in group.items()}
        squares = all(_are_squares(_keys(holder), leaf) for leaf in means.values())
        placed = with_parameters(without(nothing, means), means)
        moved = named(placed.moved_gradients(alignment, squares))
        for name, i in group.items():
            found[i] = moved[name]
    return jax.tree_util.tree_unflatten(structure, found)


def _keys(path: Any) -> list[Any]:
    return [getattr(key, "key", getattr(key, "name", None)) for key in path]


def _are_squares(keys: Any, leaf: Any) -> bool:
    """Whether a running mean is one of squares: by its name, or because nothing in it is negative."""
    return any(key in _SQUARES for key in keys) or bool(np.min(leaf) >= 0)


def _owner(model: Any, name: str) -> Any:
    """Return the basis that has the grid of this name."""
    paths = jax.tree_util.tree_leaves_with_path(model)
    path = next(path for path, _ in paths if jax.tree_util.keystr(path) == name)
    for key in path[:-1]:
        model = getattr(model, key.name) if hasattr(key, "name") else model[key.idx]
    return model
