r"""Closed forms for every learned density of a prior: what a scientist would write down.

`fit_prior` finds for each coordinate the formula of lowest BIC for $\log p$ (or for the energy
$f = \log p - \log\pi_0$) and measures what it costs: $\mathrm{KL}(p\,\|\,q)$, the weighted $R^2$ of the
log-density, and the largest error of the density. A formula that misses by more than the two thresholds
below is reported as no good. `symbolic_prior` puts the formulas back into the prior, where they are
sampled exactly like the energies they replace. The coordinates' KLs add up to that of the
prior, and no generator can make it larger: data of the two models are at most that far apart.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ...bases.closed_form import TERMS, ClosedForm, ClosedForms
from ...errors import UserError
from ...priors import AbstractPrior
from .fitting import Target, density_of
from .search import search

NODES = 512  # of the grid across each domain
SAMPLES = 100_000  # n of the BIC: forms that so many samples could not tell apart are alike
GOOD_KL = 1e-3  # nats
GOOD_DENSITY_ERROR = 0.02  # of the peak
Of = Literal["log-density", "energy"]


@dataclass(frozen=True)
class Fit:
    """One coordinate's closed form, and how well it does."""

    place: tuple[int, ...]  # (q, p), or (q,) of a mixture
    domain: tuple[float, float]
    form: ClosedForm
    kl: float  # KL(p || q) in nats
    r_squared: float  # of the log-density (or energy), weighted by p
    density_error: float  # the largest |q - p|
    relative_error: float  # ... over the largest p
    bic: float
    parameters: int  # that were fitted
    log_normaliser: float  # log Z: of exp(form), or of exp(form) pi_0

    @property
    def good(self) -> bool:
        return self.kl <= GOOD_KL and self.relative_error <= GOOD_DENSITY_ERROR

    @property
    def verdict(self) -> str:
        return "good" if self.good else "no good closed form"


@dataclass(frozen=True)
class Fits:
    """The closed forms of a prior, in the order of its coordinates."""

    of: Of
    reference: str  # the prior's; a closed form of a log-density needs none
    shape: tuple[int, ...]
    samples: int
    fits: tuple[Fit, ...]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    @property
    def total_kl(self) -> float:
        """KL of the prior from its closed form, exactly: coordinates are independent."""
        return math.fsum(fit.kl for fit in self.fits)

    @property
    def good(self) -> int:
        """How many are good."""
        return sum(fit.good for fit in self.fits)

    def worst(self, count: int) -> list[Fit]:
        """Return those whose density is farthest off."""
        return sorted(self.fits, key=lambda fit: (-fit.relative_error, fit.place))[:count]


def family(form: ClosedForm, of: Of = "log-density") -> str:
    """Return what the form is called."""
    names = form.names
    if len(names) == 1 and TERMS[names[0]].whole:
        title = TERMS[names[0]].title
        reflected = names[0] == "gumbel" and form.values[0][1] < 0
        return f"reflected {title}" if reflected else title
    if of == "log-density":
        match names, form.values:
            case (), _:
                return "uniform"
            case ("linear",), _:
                return "exponential"
            case ("cosine",), _:
                return "von Mises"
            case ("linear", "absolute"), ((b,), (a, _)) if a < -abs(b):
                return "asymmetric Laplace"
    powers = ("linear", "square", "cube", "fourth")
    degree = max((powers.index(n) + 1 for n in names if n in powers), default=0)
    titles = [f"polynomial of degree {degree}"] if degree else []
    kinds = [n for n in names if n not in powers]
    for name in dict.fromkeys(kinds):
        number = kinds.count(name)
        titles.append(f"{number} x {TERMS[name].title}" if number > 1 else TERMS[name].title)
    return " + ".join(titles) or "constant"


def targets(
    prior: AbstractPrior, of: Of = "log-density", samples: int = SAMPLES
) -> Iterator[tuple[tuple[int, ...], Target]]:
    """Yield every coordinate's place and what is to be written down, on `NODES` points of its domain."""
    lo, hi = np.asarray(prior.domain, np.float64).T
    z = np.linspace(lo, hi, NODES, axis=1)
    nodes = jnp.asarray(z, jnp.float32)
    log_density = np.asarray(eqx.filter_jit(type(prior)._log_density)(prior, nodes), np.float64)
    log_pi = np.asarray(prior.pi_0.log_density(nodes), np.float64)
    for place in np.ndindex(*prior.shape):
        row = place[1] if len(place) == 2 else 0
        cell = np.full(NODES, z[row, 1] - z[row, 0])
        cell[[0, -1]] /= 2
        values = log_density[place]
        top = values.max()
        log_p = values - top - np.log(np.exp(values - top) @ cell)
        base = log_pi[row] if of == "energy" else np.zeros(NODES)
        yield place, Target(z[row], log_p - base, base, cell, samples, of == "log-density")


def fit_target(place: tuple[int, ...], target: Target) -> Fit:
    """Return the best closed form of one coordinate, with its measures."""
    best = search(target)
    p, q = target.density, density_of(best.form, target)
    weights = p * target.cell
    g = best.form(target.z)
    residual, y = g - target.y, target.y
    spread = weights @ (y - weights @ y) ** 2
    misfit = weights @ (residual - weights @ residual) ** 2
    error = float(np.abs(q - p).max())
    log_q = g + target.base
    return Fit(
        place=place,
        domain=(float(target.z[0]), float(target.z[-1])),
        form=best.form,
        kl=best.kl,
        # A constant is explained by nothing, and needs no explaining.
        r_squared=float(1 - misfit / spread) if spread > 1e-12 else 1.0,
        density_error=error,
        relative_error=error / float(p.max()),
        bic=float(best.bic),
        parameters=best.parameters,
        log_normaliser=float(np.log(np.exp(log_q - log_q.max()) @ target.cell) + log_q.max()),
    )


def fit_places(
    prior: AbstractPrior,
    places: Iterable[tuple[int, ...]],
    of: Of = "log-density",
    samples: int = SAMPLES,
) -> Iterator[Fit]:
    """Return closed forms of some coordinates, one after the other.

    **Arguments:** `of` is what is written down, the log-density or the energy; `samples` is the n
    of the BIC: the more, the smaller the misfit that is worth another parameter.
    """
    if of not in ("log-density", "energy"):
        raise ValueError(f"of must be 'log-density' or 'energy', got {of!r}.")
    if samples < 2:
        raise ValueError(f"the BIC needs at least 2 samples, got {samples}.")
    wanted = dict(targets(prior, of, samples))
    return (fit_target(place, wanted[place]) for place in places)


def fit_prior(prior: AbstractPrior, of: Of = "log-density", samples: int = SAMPLES) -> Fits:
    """Return closed forms of all coordinates; arguments as in `fit_places`."""
    fits = fit_places(prior, np.ndindex(*prior.shape), of, samples)
    return Fits(of, prior.reference, tuple(prior.shape), samples, tuple(fits))


def symbolic_prior(prior: AbstractPrior, fits: Fits, only_good: bool = True) -> AbstractPrior:
    """Return the prior with closed forms for energies: the same domain, and no reference for log-densities.

    With `only_good`, coordinates without a good closed form are an error. Otherwise the best form
    found stands in for them, and `fits.total_kl` says what all of them cost together.
    """
    domain = np.asarray(prior.domain, np.float64)
    rows = [domain[fit.place[1] if len(fit.place) == 2 else 0] for fit in fits]
    if fits.shape != tuple(prior.shape) or not np.allclose(
        rows, [fit.domain for fit in fits], rtol=1e-5, atol=1e-6
    ):
        raise UserError(
            f"the closed forms are of a prior of shape {fits.shape}, and this one has shape "
            f"{tuple(prior.shape)} and domain {domain[0].tolist()}; run `kaem symbolic` on this model."
        )
    if fits.of == "energy" and fits.reference != prior.reference:
        raise UserError(
            f"the closed forms are energies over the reference {fits.reference!r}, and this prior's is "
            f"{prior.reference!r}; run `kaem symbolic` on this model."
        )
    bad = [fit.place for fit in fits if not fit.good]
    if only_good and bad:
        first = ", ".join(str(tuple(i + 1 for i in place)) for place in bad[:3])
        raise UserError(
            f"{len(bad)} of {len(fits)} coordinates have no good closed form (first: {first}). With "
            f"only_good=False the best form found is used for them; the total KL is {fits.total_kl:.3g} nats."
        )
    shape = (fits.shape[0], fits.shape[1] if len(fits.shape) == 2 else 1)
    energies = ClosedForms.of([fit.form for fit in fits], shape)
    return prior.with_energies(energies, "none" if fits.of == "log-density" else prior.reference)
