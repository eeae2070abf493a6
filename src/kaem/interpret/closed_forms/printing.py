r"""Closed forms as formulas: SymPy expressions, LaTeX, MathML, and Python that needs only `math`.

The formulas are the library's own terms evaluated in SymPy's namespace, so that what is printed is
what was fitted. For Python, sums of exponentials and logarithms near zero stay functions with a name:
they are defined at the top of the text, in a way that neither underflows nor divides by zero.
"""

from typing import Any

from ...bases.closed_form import ClosedForm, Namespace
from ...errors import UserError
from .fits import Fit, Fits, family

DIGITS = 4  # significant, of formulas that are read


def import_sympy() -> Any:
    """Return SymPy, or say how to get it."""
    try:
        import sympy
    except ImportError as error:
        raise UserError(
            "formulas need SymPy, which is not installed; run `pip install 'kaem[symbolic]'`."
        ) from error
    return sympy


def _namespace(named: bool) -> Namespace:
    sympy = import_sympy()

    def log_sum(*pairs: Any) -> Any:
        terms = zip(pairs[::2], pairs[1::2], strict=True)
        return sympy.log(sum(w * sympy.exp(x) for w, x in terms))

    def log_normal_cdf(x: Any) -> Any:
        return sympy.log(sympy.erfc(-x / sympy.sqrt(2)) / 2)

    return Namespace(
        exp=sympy.exp,
        log=sympy.log,
        cos=sympy.cos,
        absolute=sympy.Abs,
        log_sum=sympy.Function("log_sum") if named else log_sum,
        log_positive=sympy.Function("log_positive") if named else sympy.log,
        log_normal_cdf=sympy.Function("log_normal_cdf") if named else log_normal_cdf,
    )


def expression(form: ClosedForm, *, named: bool = False) -> Any:
    """Return the form as a SymPy expression in the symbol z, up to the constant that normalises it.

    With `named`, what needs care in floating point stays a function with a name.
    """
    sympy = import_sympy()
    exact = tuple(tuple(sympy.Float(repr(v), 17) for v in values) for values in form.values)
    return form._replace(values=exact)(sympy.Symbol("z", real=True), _namespace(named))


def rounded(form: ClosedForm, digits: int = DIGITS) -> Any:
    """Return the expression with numbers of so many digits, and whole numbers without a point.

    Exponentials have another name than SymPy's own, which would print those of negative numbers as
    fractions.
    """
    sympy = import_sympy()
    formula = expression(form)

    def short(number: Any) -> Any:
        text = f"{float(number):.{digits}g}"
        whole = "e" not in text and float(text).is_integer()
        return sympy.Integer(int(float(text))) if whole else sympy.Float(text, digits)

    formula = formula.xreplace({number: short(number) for number in formula.atoms(sympy.Float)})
    return formula.replace(sympy.exp, sympy.Function("exp"))


def text(form: ClosedForm, digits: int = DIGITS) -> str:
    """Return the formula on one line."""
    return str(rounded(form, digits)).replace("**", "^")


def latex(form: ClosedForm, digits: int = DIGITS) -> str:
    return str(import_sympy().latex(rounded(form, digits)))


def mathml(form: ClosedForm, digits: int = DIGITS) -> str:
    """Return presentation MathML, for HTML pages."""
    inner = import_sympy().mathml(rounded(form, digits), printer="presentation")
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML">{inner}</math>'


_DEFINITIONS = {
    "log_sum": '''
def log_sum(*pairs):
    """log(w_1 exp(x_1) + w_2 exp(x_2) + ...), stable."""
    top = max(pairs[1::2])
    return top + math.log(sum(w * math.exp(x - top) for w, x in zip(pairs[::2], pairs[1::2])))
''',
    "log_positive": '''
def log_positive(x):
    """log(x), finite at zero."""
    return math.log(max(x, 1e-6))
''',
    "log_normal_cdf": '''
def log_normal_cdf(x):
    """log of the standard normal distribution function."""
    if x > -20:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)
''',
}


def python_expression(form: ClosedForm) -> str:
    """Return the form in Python, of z, `math` and the named functions."""
    code = import_sympy().pycode(expression(form, named=True), allow_unknown_functions=True)
    return str(code)


def _function_name(fit: Fit, of: str) -> str:
    return "_".join([of.replace("-", "_"), *(str(i + 1) for i in fit.place)])


def python_source(fits: Fits) -> str:
    """Return a module with one function for each coordinate; it needs nothing but the standard library."""
    bodies = []
    for fit in fits:
        place = ", ".join(f"{n} = {i + 1}" for n, i in zip("qp", fit.place, strict=False))
        constant = f" + {-fit.log_normaliser!r}" if fits.of == "log-density" else ""
        bodies.append(
            f"\n\ndef {_function_name(fit, fits.of)}(z):\n"
            f'    """{place}: {family(fit.form, fits.of)} ({fit.verdict}: KL {fit.kl:.2g} nats, largest '
            f"density error {100 * fit.relative_error:.2g} % of the peak), "
            f'on [{fit.domain[0]:g}, {fit.domain[1]:g}]."""\n'
            f"    return {python_expression(fit.form)}{constant}\n".replace("+ -", "- ")
        )
    code = "".join(bodies)
    definitions = "\n".join(d for name, d in _DEFINITIONS.items() if f"{name}(" in code)
    what = (
        "Normalised log-densities"
        if fits.of == "log-density"
        else f"Energies over the {fits.reference} reference, up to a constant,"
    )
    table = "".join(
        f"    {tuple(i + 1 for i in fit.place)!r}: {_function_name(fit, fits.of)},\n"
        for fit in fits
    )
    return (
        f'"""{what} of a learned prior in closed form, written by `kaem symbolic`."""\n\n'
        f"import math\n{definitions and chr(10) + definitions.rstrip(chr(10)) + chr(10)}{code}"
        f"\n\nFUNCTIONS = {{\n{table}}}\n"
    )


_HEAD = r"""% Closed forms written by `kaem symbolic`: \input this file; it needs the packages longtable and amsmath.
\begin{longtable}{llp{0.55\linewidth}rr}
"""


def latex_table(fits: Fits) -> str:
    """Return all formulas as a LaTeX table."""
    symbol = r"\log p(z) + \mathrm{const.}" if fits.of == "log-density" else "f(z)"
    columns = rf"place & family & ${symbol}$ & KL (nats) & error (\% of peak) \\ \hline"
    rows = []
    for fit in fits:
        place = ", ".join(str(i + 1) for i in fit.place)
        name = family(fit.form, fits.of).replace("^", r"\textasciicircum{}")
        name = name.replace("|", r"\textbar{}") + ("" if fit.good else " (no good closed form)")
        rows.append(
            f"{place} & {name} & $\\displaystyle {latex(fit.form)}$ & {fit.kl:.1e} & "
            f"{100 * fit.relative_error:.2g} \\\\\n"
        )
    return f"{_HEAD}{columns}\n\\endhead\n{''.join(rows)}\\end{{longtable}}\n"
