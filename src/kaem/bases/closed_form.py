r"""Closed forms: functions of one variable that can be written down, and banks of them.

A form is a sum of terms, $f(z) = \sum_t a_t\,g_t(z; \theta_t)$, or the logarithm of one whole density,
such as a mixture of Gaussians. Each term is defined once, over a `Namespace` of elementary functions:
NumPy's (fitting, in double precision), JAX's (models) or SymPy's (printing) put the same formula to
use. Nothing is ever evaluated from text: a form is names out of `TERMS` and numbers.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import log_ndtr

_SMALLEST = 1e-6  # of a logarithm's argument: below any table's resolution, and scores stay finite
_LARGEST = 80.0  # of an exponent: e^80 is near the largest number of float32


class Namespace(NamedTuple):
    """Elementary functions of one kind of number."""

    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]  # of numbers that a form keeps positive
    cos: Callable[[Any], Any]
    absolute: Callable[[Any], Any]
    log_sum: Callable[..., Any]  # log(w_1 exp(x_1) + w_2 exp(x_2) + ...) of w_1, x_1, w_2, x_2, ...
    log_positive: Callable[[Any], Any]  # of numbers that reach zero at the end of a domain
    log_normal_cdf: Callable[[Any], Any]


def _namespace(library: Any, log_normal_cdf: Callable[[Any], Any]) -> Namespace:
    """Return the functions of a library that names them as NumPy does."""

    def log_sum(*pairs: Any) -> Any:  # stable where every exponential would underflow
        terms = [library.log(w) + x for w, x in zip(pairs[::2], pairs[1::2], strict=True)]
        return functools.reduce(library.logaddexp, terms)

    return Namespace(
        exp=lambda x: library.exp(library.minimum(x, _LARGEST)),
        log=library.log,
        cos=library.cos,
        absolute=library.abs,
        log_sum=log_sum,
        log_positive=lambda x: library.log(library.maximum(x, _SMALLEST)),
        log_normal_cdf=log_normal_cdf,
    )


NUMPY, JAX = _namespace(np, log_ndtr), _namespace(jnp, jax.scipy.special.log_ndtr)


@dataclass(frozen=True)
class Term:
    """A function $g(z; \\theta)$ times an amplitude, or the logarithm of a whole density."""

    title: str
    function: Callable[..., Any]  # (m, z, *parameters without the amplitude)
    parameters: tuple[str, ...]  # the first is the amplitude, if it is additive
    positive: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()  # set by convention or by the domain: not counted
    whole: bool = False

    @property
    def count(self) -> int:
        """Return how many parameters are fitted."""
        return len(self.parameters) - len(self.fixed)

    def __call__(self, m: Namespace, z: Any, values: Sequence[Any]) -> Any:
        if self.whole:
            return self.function(m, z, *values)
        return values[0] * self.function(m, z, *values[1:])


def _parabola(z: Any, centre: Any, width: Any) -> Any:
    # Not ((z - c) / s)^2: SymPy would multiply that out and hide the centre.
    return -((z - centre) ** 2) / (2 * width**2)


def _bump(m: Namespace, z: Any, centre: Any, width: Any) -> Any:
    return m.exp(_parabola(z, centre, width))


def _morlet(m: Namespace, z: Any, centre: Any, width: Any, tau: Any) -> Any:
    return m.cos(tau * (z - centre) / width) * m.exp(_parabola(z, centre, width))


def _step(m: Namespace, z: Any, centre: Any, width: Any) -> Any:
    return m.exp(-m.log_sum(1, 0 * z, 1, (centre - z) / width))


def _mixture(m: Namespace, z: Any, *parameters: Any) -> Any:
    k = len(parameters) // 3
    weights, means, stds = parameters[:k], parameters[k : 2 * k], parameters[2 * k :]
    components = zip(weights, means, stds, strict=True)
    return m.log_sum(*(x for w, mean, s in components for x in (w / s, _parabola(z, mean, s))))


def _skew_normal(m: Namespace, z: Any, location: Any, scale: Any, shape: Any) -> Any:
    return _parabola(z, location, scale) + m.log_normal_cdf(shape * (z - location) / scale)


def _gumbel(m: Namespace, z: Any, location: Any, scale: Any) -> Any:
    x = (z - location) / scale
    return -x - m.exp(-x)


def _logistic(m: Namespace, z: Any, location: Any, scale: Any) -> Any:
    x = (z - location) / scale
    return -x - 2 * m.log_sum(1, 0 * z, 1, -x)


def _student(m: Namespace, z: Any, location: Any, scale: Any, freedom: Any) -> Any:
    return -(freedom + 1) / 2 * m.log(1 + (z - location) ** 2 / (scale**2 * freedom))


def _lognormal(m: Namespace, z: Any, mu: Any, sigma: Any) -> Any:
    log_z = m.log_positive(z)
    return -log_z + _parabola(log_z, mu, sigma)


def _gamma(m: Namespace, z: Any, shape: Any, scale: Any) -> Any:
    return (shape - 1) * m.log_positive(z) - z / scale


def _beta(m: Namespace, z: Any, alpha: Any, beta: Any, lower: Any, upper: Any) -> Any:
    x = (z - lower) / (upper - lower)
    return (alpha - 1) * m.log_positive(x) + (beta - 1) * m.log_positive(1 - x)


def _power(n: int) -> Callable[..., Any]:
    return lambda m, z: z**n


def _gaussians(k: int) -> Term:
    names = tuple(f"{kind}_{i + 1}" for kind in ("weight", "mean", "std") for i in range(k))
    positive = frozenset(n for n in names if not n.startswith("mean"))
    # Weights sum to one: the last is what the others leave.
    fixed = frozenset({f"weight_{k}"})
    return Term(f"mixture of {k} Gaussians", _mixture, names, positive, fixed, whole=True)


def _whole(title: str, function: Callable[..., Any], names: str, positive: str = "") -> Term:
    return Term(title, function, tuple(names.split()), frozenset(positive.split()), whole=True)


_LOCATED = ("amplitude", "centre", "width")
TERMS: dict[str, Term] = {
    "linear": Term("z", _power(1), ("amplitude",)),
    "square": Term("z^2", _power(2), ("amplitude",)),
    "cube": Term("z^3", _power(3), ("amplitude",)),
    "fourth": Term("z^4", _power(4), ("amplitude",)),
    "cosine": Term(
        "cosine",
        lambda m, z, frequency, phase: m.cos(frequency * z + phase),
        ("amplitude", "frequency", "phase"),
        frozenset({"frequency"}),
    ),
    "bump": Term("Gaussian bump", _bump, _LOCATED, frozenset({"width"})),
    "morlet": Term("Morlet wavelet", _morlet, (*_LOCATED, "tau"), frozenset({"width", "tau"})),
    "step": Term("logistic step", _step, _LOCATED, frozenset({"width"})),
    "absolute": Term(
        "|z - m|", lambda m, z, centre: m.absolute(z - centre), ("amplitude", "centre")
    ),
    "normal": _whole("normal", lambda m, z, mean, std: _parabola(z, mean, std), "mean std", "std"),
    "laplace": _whole(
        "Laplace",
        lambda m, z, location, scale: -m.absolute(z - location) / scale,
        "location scale",
        "scale",
    ),
    "skew-normal": _whole("skew-normal", _skew_normal, "location scale shape", "scale"),
    "gumbel": _whole("Gumbel", _gumbel, "location scale"),  # scale < 0: the long tail is left
    "logistic": _whole("logistic", _logistic, "location scale", "scale"),
    "student": _whole("Student's t", _student, "location scale freedom", "scale freedom"),
    "lognormal": _whole("lognormal", _lognormal, "mu sigma", "sigma"),
    "gamma": _whole("gamma", _gamma, "shape scale", "shape scale"),
    "beta": Term(
        "beta",
        _beta,
        ("alpha", "beta", "lower", "upper"),
        frozenset({"alpha", "beta"}),
        frozenset({"lower", "upper"}),
        whole=True,
    ),
    **{f"gaussians-{k}": _gaussians(k) for k in (2, 3, 4)},
}


class ClosedForm(NamedTuple):
    """A sum of terms: their names in `TERMS`, and the parameters of each."""

    names: tuple[str, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()

    def __call__(self, z: Any, m: Namespace = NUMPY) -> Any:
        """Return the form at `z`, up to the constant that normalises a density."""
        terms = (TERMS[n](m, z, v) for n, v in zip(self.names, self.values, strict=True))
        return sum(terms, start=0 * z)


class ClosedForms(eqx.Module):
    """Q x P closed forms, as energies of a prior: what priors ask of `Functions`, without a grid.

    Forms with the same terms are one group and one vectorised evaluation: thousands of coordinates
    trace as many formulas as there are different ones. Parameters are arrays and can be trained.
    """

    groups: tuple[Float[Array, "n k"], ...]  # the parameters of all terms, one row for each form
    structures: tuple[tuple[str, ...], ...] = eqx.field(static=True)  # the names of each group
    order: tuple[int, ...] = eqx.field(static=True)  # flat places, group after group
    shape: tuple[int, int] = eqx.field(static=True)

    # What priors ask of `Functions`.
    name: ClassVar[str] = "closed-form"
    activation: ClassVar[None] = None
    window: ClassVar[None] = None

    def __check_init__(self) -> None:
        q, p = self.shape
        if len(self.order) != q * p or sorted(self.order) != list(range(q * p)):
            raise ValueError(f"{len(self.order)} closed forms do not fill {q} x {p} places.")
        if len(self.groups) != len(self.structures):
            raise ValueError(
                f"got {len(self.groups)} arrays for {len(self.structures)} structures, expected one each."
            )

    @classmethod
    def of(cls, forms: Sequence[ClosedForm], shape: tuple[int, int]) -> Self:
        """Return a bank of Q x P forms, given row by row."""
        structures = tuple(dict.fromkeys(form.names for form in forms))
        places = [[i for i, f in enumerate(forms) if f.names == names] for names in structures]
        groups = tuple(
            jnp.asarray(
                np.array(
                    [[x for term in forms[i].values for x in term] for i in members], np.float32
                ).reshape(len(members), -1)
            )
            for members in places
        )
        order = tuple(i for members in places for i in members)
        return cls(groups, structures, order, shape)

    def _evaluate(self, z: Float[Array, "QP ..."]) -> Float[Array, "QP ..."]:
        order, start, found = np.array(self.order), 0, []
        for names, parameters in zip(self.structures, self.groups, strict=True):
            members = order[start : start + len(parameters)]
            start += len(parameters)
            found.append(jax.vmap(functools.partial(_sum, names))(z[members], parameters))
        return jnp.concatenate(found)[np.argsort(order)]

    def __call__(self, z: Float[Array, "Q P"]) -> Float[Array, "Q P"]:
        return self._evaluate(z.reshape(-1)).reshape(self.shape)

    def curves(self, x: Float[Array, "P N"]) -> Float[Array, "Q P N"]:
        q, p = self.shape
        return self._evaluate(jnp.tile(x, (q, 1))).reshape(q, p, -1)

    def expectation(
        self, z: Float[Array, "Q P n"], weights: Float[Array, " n"]
    ) -> Float[Array, "Q P"]:
        r"""Return $\sum_n w_n f_{q,p}(z_n)$ [Q, P]; gradients reach the parameters, not `z` or `weights`."""
        z, weights = jax.lax.stop_gradient((z, weights))
        return self._evaluate(z.reshape(-1, z.shape[-1])).reshape(z.shape) @ weights

    def regrid(self, *_: Any) -> Self:
        """Return the same forms: they have no grid to move."""
        return self


def _sum(names: tuple[str, ...], z: Array, parameters: Float[Array, " k"]) -> Array:
    total, start = jnp.zeros_like(z), 0
    for name in names:
        term = TERMS[name]
        end = start + len(term.parameters)
        total, start = total + term(JAX, z, list(parameters[start:end])), end
    return total
