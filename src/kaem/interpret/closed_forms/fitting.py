r"""Fitting one closed form to one log-density: variable projection.

The target is $y = \log p$ on a uniform grid with weights $w = p\,dz$. A form's amplitudes are linear and
solved by weighted least squares inside (Golub and Pereyra, 1973); what is left, frequencies, centres and
widths, is polished by Levenberg-Marquardt on the projected residual, whose weighted variance is about
$2\,\mathrm{KL}(p\,\|\,q)$. What is reported is the divergence itself, and with it
$$\mathrm{BIC} = 2n\,\mathrm{KL}(p\,\|\,q) + k\log n,$$
where $n$ is the number of samples that one would use to tell $p$ from $q$ and $k$ counts parameters.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ...bases.closed_form import NUMPY, TERMS, ClosedForm

COARSE, FINE = 1e-3, 1e-13  # tolerances of a search, and of what it found
_EVALUATIONS = {COARSE: 16, FINE: 60}


class Target(NamedTuple):
    """A density on a grid: what is to be written down."""

    z: np.ndarray
    y: np.ndarray  # log p, or the energy log p - log pi_0
    base: np.ndarray  # log p - y: zero, or log pi_0
    cell: np.ndarray  # quadrature weights
    samples: int  # n of the BIC
    densities: bool  # whether whole densities are candidates

    @property
    def density(self) -> np.ndarray:
        return np.exp(_log_normalised(self.y + self.base, self.cell))


class Candidate(NamedTuple):
    form: ClosedForm
    kl: float
    parameters: int  # that were fitted
    bic: float


def _log_normalised(log_density: np.ndarray, cell: np.ndarray) -> np.ndarray:
    top = log_density.max()
    return log_density - (top + np.log(np.exp(log_density - top) @ cell))


def density_of(form: ClosedForm, target: Target) -> np.ndarray:
    """Return the form's density on the target's grid."""
    return np.exp(_log_normalised(form(target.z) + target.base, target.cell))


def candidate(form: ClosedForm, target: Target, zeros: int = 0) -> Candidate:
    r"""Return a form with its price; `zeros` of its parameters were set to zero and are not counted.

    $\mathrm{KL}(p\,\|\,q)$ is by the same quadrature that normalises both.
    """
    count = sum(TERMS[name].count for name in form.names) - zeros
    log_p, log_q = (
        _log_normalised(g + target.base, target.cell) for g in (target.y, form(target.z))
    )
    kl = float(max((np.exp(log_p) * target.cell) @ (log_p - log_q), 0.0))
    return Candidate(form, kl, count, 2 * target.samples * kl + count * np.log(target.samples))


# A nonlinear parameter that is fitted: its term, its place in that, and whether by its logarithm.
_Free = tuple[int, int, bool]


def _free(form: ClosedForm, held: frozenset[tuple[int, int]]) -> list[_Free]:
    return [
        (t, i, parameter in term.positive)
        for t, name in enumerate(form.names)
        for term in (TERMS[name],)
        for i, parameter in enumerate(term.parameters)
        if (term.whole or i > 0) and parameter not in term.fixed and (t, i) not in held
    ]


def _with(form: ClosedForm, free: list[_Free], theta: np.ndarray) -> ClosedForm:
    values = [list(v) for v in form.values]
    for (t, i, logarithm), x in zip(free, theta, strict=True):
        values[t][i] = float(np.exp(np.clip(x, -20, 20))) if logarithm else float(x)
    return ClosedForm(form.names, tuple(tuple(v) for v in values))


def split(form: ClosedForm, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns with free amplitudes, after a column of ones; and the sum of the other terms."""
    columns, offset = [np.ones_like(z)], np.zeros_like(z)
    for name, values in zip(form.names, form.values, strict=True):
        term = TERMS[name]
        if term.whole:
            offset = offset + term(NUMPY, z, values)
        else:
            columns.append(np.broadcast_to(term.function(NUMPY, z, *values[1:]), z.shape))
    return np.stack(columns, axis=1), offset


def polish(
    form: ClosedForm,
    target: Target,
    weights: np.ndarray,
    held: frozenset[tuple[int, int]] = frozenset(),
    tolerance: float = COARSE,
) -> ClosedForm:
    """Return the form at the nearest least-squares solution, with the parameters `held` as they are."""
    problem = _Projection(form, target, np.sqrt(weights), _free(form, held))
    if problem.free:
        found = least_squares(
            problem.residual, problem.start, problem.jacobian, method="lm",
            xtol=tolerance, ftol=tolerance, gtol=tolerance, max_nfev=_EVALUATIONS[tolerance],
        )  # fmt: skip
        form = _with(form, problem.free, found.x)
    amplitudes = iter(problem.solved(form)[2])
    values = tuple(
        v if TERMS[name].whole else (float(next(amplitudes)), *v[1:])
        for name, v in zip(form.names, form.values, strict=True)
    )
    return ClosedForm(form.names, values)


class _Projection:
    """The residual left by the best amplitudes, and its slope in the nonlinear parameters."""

    def __init__(
        self, form: ClosedForm, target: Target, root: np.ndarray, free: list[_Free]
    ) -> None:
        self.form, self.target, self.root, self.free = form, target, root, free
        # The solver asks for the residual and then for the slope at the same point.
        self.solved = lru_cache(maxsize=1)(self._solve)
        self.start = np.array(
            [np.log(form.values[t][i]) if log else form.values[t][i] for t, i, log in free]
        )

    def _solve(self, form: ClosedForm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return an orthonormal basis of the columns, the residual, and the amplitudes."""
        columns, offset = split(form, self.target.z)
        scaled = np.nan_to_num(self.root[:, None] * columns)
        size = np.sqrt(np.einsum("nk,nk->k", scaled, scaled)) + 1e-300
        basis, triangle = np.linalg.qr(scaled / size)
        r = np.nan_to_num(self.root * (self.target.y - offset), posinf=1e6, neginf=-1e6)
        along = basis.T @ r
        # Columns that the others explain get no amplitude, instead of a huge one that cancels.
        solution = np.linalg.lstsq(triangle, along, rcond=1e-12)[0]
        return basis, r - basis @ along, (solution / size)[1:]

    def residual(self, theta: np.ndarray) -> np.ndarray:
        return self.solved(_with(self.form, self.free, theta))[1]

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Return Kaufman's (1975) slope: amplitudes held, the slope projected off the columns."""
        form = _with(self.form, self.free, theta)
        basis, _, amplitudes = self.solved(form)
        z, of_term = self.target.z, iter(amplitudes)
        factor = [1.0 if TERMS[name].whole else next(of_term) for name in form.names]
        slopes = np.empty((len(z), len(theta)))
        for j, (t, i, logarithm) in enumerate(self.free):
            values, term = list(form.values[t]), TERMS[form.names[t]]
            step = 1e-6 * (values[i] if logarithm else 1.0)
            sides = []
            for change in (step, -step):
                moved = [*values[:i], values[i] + change, *values[i + 1 :]]
                sides.append(term.function(NUMPY, z, *(moved if term.whole else moved[1:])))
            slopes[:, j] = factor[t] * (sides[1] - sides[0]) / (2e-6)
        slopes *= self.root[:, None]
        return np.nan_to_num(slopes - basis @ (basis.T @ slopes))


def fitted(
    form: ClosedForm,
    target: Target,
    held: frozenset[tuple[int, int]] = frozenset(),
    tolerance: float = COARSE,
) -> Candidate:
    """Return a form polished and priced.

    Weights p do not see where q puts mass and p has none: there, they become (p + q)/2.
    """
    p = target.density * target.cell
    made = candidate(polish(form, target, p, held, tolerance), target, len(held))
    for _ in range(2):
        g = made.form(target.z) - target.y
        if made.kl <= 1e-9 or made.kl < p @ (g - p @ g) ** 2:
            break
        q = density_of(made.form, target) * target.cell
        again = candidate(
            polish(made.form, target, (p + q) / 2, held, tolerance), target, len(held)
        )
        if again.kl >= made.kl:
            break
        made = again
    return made


def sensible(form: ClosedForm, target: Target) -> bool:
    """Return whether the grid sees all features, within the domain, and no terms cancel."""
    step, length = target.z[1] - target.z[0], target.z[-1] - target.z[0]
    middle = (target.z[0] + target.z[-1]) / 2
    inside = target.density > 1e-3 * target.density.max()
    largest = 5 * (1 + np.ptp(target.y[inside]))
    for name, values in zip(form.names, form.values, strict=True):
        term = TERMS[name]
        named = dict(zip(term.parameters, values, strict=True))
        widths = [v for key, v in named.items() if key.startswith(("width", "std"))]
        centres = [v for key, v in named.items() if key.startswith(("centre", "mean"))]
        frequency = named.get("frequency", named.get("tau", 0) / named.get("width", 1))
        if (
            not np.isfinite(values).all()
            or any(width < 2 * step for width in widths)
            or 2 * np.pi < 6 * step * frequency
            or named.get("width", 0) > length
            or any(abs(centre - middle) > length for centre in centres)
            or (not term.whole and np.ptp(term(NUMPY, target.z, values)[inside]) > largest)
        ):
            return False
    return True
