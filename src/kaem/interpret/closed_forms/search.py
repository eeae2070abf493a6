r"""The search for a closed form of one log-density, of lowest BIC.

Families of whole densities are fitted once each. Additive terms are found on a coarse grid of their
nonlinear parameters, by how much each would explain of what is left, and added in a beam search, which
begins with all pairs too. With $k$ parameters no form is below $k\log n$, so that larger ones are not tried
once the best is below that. Last, terms and parameters that are not worth their price are dropped.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...bases.closed_form import NUMPY, TERMS, ClosedForm, Term
from .fitting import FINE, Candidate, Target, candidate, fitted, sensible, split

_ROUNDS, MAX_PARAMETERS = 4, 12
_BEAM = 3  # forms kept at each size
_STARTS, _REFINED = 2, 6  # of each kind of term, and of all, that are polished for each of them
_RESTS = ("phase", "centre", "mean", "location")  # parameters that a scientist would set to zero
_ADDITIVE = tuple(name for name, term in TERMS.items() if not term.whole)


def _starts(target: Target) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield nonlinear parameters of every additive term on a coarse grid, where the density is."""
    below = np.cumsum(target.density * target.cell)
    lo, hi = np.interp([1e-3, 1 - 1e-3], below, target.z)
    span = hi - lo
    centres = np.linspace(lo, hi, 15)
    for name in ("linear", "square", "cube", "fourth"):
        yield name, ()
    for turns in np.arange(0.25, 12, 0.25):
        for phase in np.arange(4) * np.pi / 4:
            yield "cosine", (2 * np.pi * turns / span, phase)
    for centre in np.linspace(lo, hi, 31):
        yield "absolute", (centre,)
    for centre in centres:
        for share in (0.04, 0.08, 0.15, 0.3, 0.6):
            yield "bump", (centre, share * span)
        for share in (0.01, 0.03, 0.08, 0.2):
            yield "step", (centre, share * span)
    for centre in np.linspace(lo, hi, 31):  # finer: a wavelet has its own period to be found
        for share in (0.06, 0.12, 0.24, 0.5):
            for tau in (1.0, 2.0, 3.0, 4.5, 6.0):
                yield "morlet", (centre, share * span, tau)


def _families(target: Target) -> Iterator[tuple[int, Callable[[], list[ClosedForm]]]]:
    """Yield whole densities by their number of parameters, each with where to begin."""
    z, w = target.z, target.density * target.cell
    mean = w @ z
    std = np.sqrt(w @ (z - mean) ** 2)
    sign = 1.0 if w @ (z - mean) ** 3 >= 0 else -1.0
    lo, hi = z[0], z[-1]

    def whole(name: str, *values: float) -> tuple[int, Callable[[], list[ClosedForm]]]:
        form = ClosedForm((name,), (tuple(float(v) for v in values),))
        return TERMS[name].count, lambda: [form]

    yield whole("normal", mean, std)
    yield whole("logistic", mean, std * np.sqrt(3) / np.pi)
    scale = sign * std * np.sqrt(6) / np.pi
    yield whole("gumbel", mean - 0.5772 * scale, scale)
    if lo >= 0:
        log_z = np.log(np.maximum(z, 1e-6))
        mu = w @ log_z
        yield whole("lognormal", mu, np.sqrt(w @ (log_z - mu) ** 2))
        yield whole("gamma", mean**2 / std**2, std**2 / mean)
    x, spread = (mean - lo) / (hi - lo), std / (hi - lo)
    strength = max(x * (1 - x) / spread**2 - 1, 0.5)
    yield whole("beta", x * strength, (1 - x) * strength, lo, hi)
    yield whole("skew-normal", mean - sign * std, 1.5 * std, 3 * sign)
    yield whole("student", mean, 0.8 * std, 4.0)
    for k in (2, 3, 4):
        name = f"gaussians-{k}"
        yield TERMS[name].count, functools.partial(_mixtures, target, k)


def _mixtures(target: Target, k: int) -> list[ClosedForm]:
    """Return mixtures to begin with, by expectation maximisation on the grid, from three partitions."""
    z, w = target.z, target.density * target.cell
    below = np.cumsum(w)
    lo, hi = np.interp([0.02, 0.98], below, z)
    quantiles = np.interp((np.arange(k) + 0.5) / k, below, z)
    peaks = np.linspace(lo, hi, k)
    made = []
    for means in (quantiles, peaks, (quantiles + peaks) / 2):
        share, std = np.full(k, 1 / k), np.full(k, (hi - lo) / (2 * k))
        for _ in range(60):
            log_r = np.log(share / std)[:, None] - ((z - means[:, None]) / std[:, None]) ** 2 / 2
            r = np.exp(log_r - log_r.max(axis=0))
            r *= w / r.sum(axis=0)
            share = np.maximum(r.sum(axis=1), 1e-6)
            means = r @ z / share
            variance = (r * (z - means[:, None]) ** 2).sum(axis=1) / share
            std = np.sqrt(np.maximum(variance, (z[1] - z[0]) ** 2))
        values = (*share, *means, *std)
        made.append(ClosedForm((f"gaussians-{k}",), (tuple(float(v) for v in values),)))
    return made


# All starts of additive terms, and their columns times the root of the weights.
_Library = tuple[list[tuple[str, tuple[float, ...]]], np.ndarray]


def _projected(
    form: ClosedForm, target: Target, columns: np.ndarray, root: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the form's residual, and columns without what it explains already, of unit length (or zero)."""
    own, offset = split(form, target.z)
    basis, _ = np.linalg.qr(root[:, None] * own)
    r = root * (target.y - offset)
    new = columns - basis @ (basis.T @ columns)
    size = np.sqrt(np.sum(new**2, axis=0))
    usable = size > 1e-5 * np.sqrt(np.sum(columns**2, axis=0))
    return r - basis @ (basis.T @ r), np.where(usable, new / np.where(usable, size, 1), 0)


def _with_start(form: ClosedForm, start: tuple[str, tuple[float, ...]]) -> ClosedForm:
    name, theta = start
    return ClosedForm((*form.names, name), (*form.values, (0.0, *theta)))


def _additions(
    form: ClosedForm, target: Target, library: _Library, root: np.ndarray
) -> list[ClosedForm]:
    """Return the form with one more term: the best starts of each kind, the most promising of all."""
    starts, columns = library
    r, new = _projected(form, target, columns, root)
    gain = (r @ new) ** 2
    best: dict[str, list[int]] = {}
    for i in np.argsort(-gain, kind="stable"):
        name = starts[i][0]
        if gain[i] > 0 and not (len(TERMS[name].parameters) == 1 and name in form.names):
            best.setdefault(name, []).append(int(i))

    def promise(i: int) -> float:
        left = target.samples * max(r @ r - gain[i], 0)
        return left + TERMS[starts[i][0]].count * np.log(target.samples)

    promising = [i for kind in best.values() for i in kind[:_STARTS]]
    return [_with_start(form, starts[i]) for i in sorted(promising, key=promise)[:_REFINED]]


def _pairs(
    form: ClosedForm, target: Target, library: _Library, root: np.ndarray
) -> list[ClosedForm]:
    """Return the form with two more terms, of all pairs of starts: what one after the other may miss.

    Wavelets, the most numerous, are left to `_additions`.
    """
    starts, columns = library
    few = [i for i, (name, _) in enumerate(starts) if name != "morlet"]
    r, new = _projected(form, target, columns[:, few], root)
    cosine, along = new.T @ new, r @ new
    independent = np.triu(cosine**2 < 0.999, k=1)
    square = along[:, None] ** 2 + along**2 - 2 * cosine * along[:, None] * along
    gain = np.where(independent, square / np.where(independent, 1 - cosine**2, 1), 0)
    kinds = list(_ADDITIVE)
    kind = np.array([kinds.index(starts[i][0]) for i in few])
    edges = [np.flatnonzero(kind == k) for k in range(len(kinds))]
    found = []
    for a, first in enumerate(edges):
        for b, second in enumerate(edges[a:], start=a):
            if len(first) and len(second) and not set(form.names) & {kinds[a], kinds[b]}:
                block = gain[first[0] : first[-1] + 1, second[0] : second[-1] + 1]
                i, j = np.unravel_index(np.argmax(block), block.shape)
                count = TERMS[kinds[a]].count + TERMS[kinds[b]].count
                left = target.samples * max(r @ r - block[i, j], 0)
                price = left + count * np.log(target.samples)
                if block[i, j] > 0:
                    found.append((price, few[first[0] + i], few[second[0] + j]))
    return [
        _with_start(_with_start(form, starts[i]), starts[j]) for _, i, j in sorted(found)[:_REFINED]
    ]


def search(target: Target) -> Candidate:
    """Return the closed form of lowest BIC."""
    price = np.log(target.samples)
    root = np.sqrt(target.density * target.cell)
    best = candidate(ClosedForm(), target)
    families = list(_families(target)) if target.densities else []

    def offer(made: Candidate) -> None:
        nonlocal best
        if made.bic < best.bic and sensible(made.form, target):
            best = made

    def try_families(at_most: int) -> None:
        while families and families[0][0] <= at_most:
            count, starts = families.pop(0)
            if count * price < best.bic:
                for start in starts():
                    offer(fitted(start, target))

    try_families(3)
    if best.bic <= price:
        return best
    additive = list(_starts(target))
    columns = [TERMS[name].function(NUMPY, target.z, *theta) for name, theta in additive]
    library = additive, root[:, None] * np.stack(columns, axis=1)
    beam = [ClosedForm()]
    parabola = ClosedForm(("linear", "square"), ((0.0,), (0.0,)))
    for size in range(1, _ROUNDS + 1):
        grown: dict[tuple[str, ...], Candidate] = {}
        starts = [added for form in beam for added in _additions(form, target, library, root)]
        if size == 2:
            starts += _pairs(ClosedForm(), target, library, root)
            starts += _pairs(parabola, target, library, root)
        for start in starts:
            count = sum(TERMS[name].count for name in start.names)
            if count > MAX_PARAMETERS or count * price >= best.bic:
                continue
            made = fitted(start, target)
            key = tuple(sorted(made.form.names))
            better = key not in grown or made.bic < grown[key].bic
            if better and sensible(made.form, target):
                grown[key] = made
        for made in grown.values():
            offer(made)
        ordered = sorted(grown.values(), key=lambda made: made.bic)
        beam = [made.form for made in ordered[:_BEAM]]
        if size == 1:
            beam.append(fitted(parabola, target).form)
        if best.bic <= (size + 1) * price:  # the cheapest that one term more could be
            break
        try_families((5, 8, 11, 11)[size - 1])
    try_families(MAX_PARAMETERS)
    return _simplified(best, target)


def _simplified(best: Candidate, target: Target) -> Candidate:
    """Return it without terms, and with zeros for parameters, that are not worth their price."""
    for t in reversed(range(len(best.form.names))):
        if len(best.form.names) > 1:
            names, values = best.form
            form = ClosedForm(names[:t] + names[t + 1 :], values[:t] + values[t + 1 :])
            shorter = fitted(form, target)
            if shorter.bic < best.bic and sensible(shorter.form, target):
                best = shorter
    fine = fitted(_canonical(best.form, target), target, tolerance=FINE)
    if fine.bic <= best.bic and sensible(fine.form, target):
        best = fine
    best = best._replace(form=_canonical(best.form, target))
    held: frozenset[tuple[int, int]] = frozenset()
    for t, name in enumerate(best.form.names):
        for i, parameter in enumerate(TERMS[name].parameters):
            if parameter in _RESTS:
                names, values = best.form
                rest = (*values[t][:i], 0.0, *values[t][i + 1 :])
                form = ClosedForm(names, (*values[:t], rest, *values[t + 1 :]))
                zero = fitted(form, target, held | {(t, i)}, FINE)
                if zero.bic < best.bic and sensible(zero.form, target):
                    best, held = zero, held | {(t, i)}
    return best


def _canonical(form: ClosedForm, target: Target) -> ClosedForm:
    """Return terms in the library's order, Gaussians by their means, and densities by their names."""
    pairs = sorted(
        zip(form.names, form.values, strict=True),
        key=lambda pair: (list(TERMS).index(pair[0]), pair[1][1:]),
    )
    pairs = [(name, _standard(TERMS[name], name, values)) for name, values in pairs]
    form = ClosedForm(tuple(n for n, _ in pairs), tuple(v for _, v in pairs))
    if not target.densities:
        return form
    match form.names, form.values:
        case ("linear", "square"), ((b,), (a,)) if a < 0:
            return ClosedForm(("normal",), ((-b / (2 * a), (-2 * a) ** -0.5),))
        case ("square",), ((a,),) if a < 0:
            return ClosedForm(("normal",), ((0.0, (-2 * a) ** -0.5),))
        case ("absolute",), ((a, centre),) if a < 0:
            return ClosedForm(("laplace",), ((centre, -1 / a),))
    return form


def _standard(term: Term, name: str, values: Sequence[float]) -> tuple[float, ...]:
    if name == "cosine":
        amplitude, frequency, phase = values
        half_turns = np.round(phase / np.pi)
        sign = -1.0 if half_turns % 2 else 1.0
        return float(sign * amplitude), frequency, float(phase - half_turns * np.pi)
    if name.startswith("gaussians"):
        k = len(term.parameters) // 3
        rows = np.array(values).reshape(3, k)
        rows[0] /= rows[0].sum()
        return tuple(float(v) for v in rows[:, np.argsort(rows[1], kind="stable")].ravel())
    return tuple(values)
