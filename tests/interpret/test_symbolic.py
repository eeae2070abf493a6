"""Closed forms against densities whose formulas are known; SciPy is the oracle."""

import copy
import dataclasses
import json
import math
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kaem
from kaem import KAEM, KAN, MixturePrior, UnivariatePrior, UserError
from kaem.bases import features_on
from kaem.bases.closed_form import JAX, TERMS, ClosedForm, ClosedForms
from kaem.bench import oracle
from kaem.cli import main
from kaem.interpret.closed_forms import (
    Fits,
    family,
    fit_prior,
    symbolic,
    symbolic_prior,
    with_closed_forms,
    writing,
)
from kaem.interpret.closed_forms.printing import (
    expression,
    latex,
    latex_table,
    mathml,
    python_expression,
    python_source,
    text,
)
from kaem.interpret.closed_forms.records import from_json, read_fits, to_json
from kaem.interpret.closed_forms.sheet import comparisons, symbolic_sheet
from kaem.methods import modified
from support.pictures import assert_drawn

LO, HI = -3.0, 3.0


def sawtooth(z):
    """No library has this: twenty kinks of random height."""
    heights = np.random.default_rng(3).normal(0, 0.8, 22)
    return np.interp(z, np.linspace(LO, HI, 22), heights)


# Log-densities up to a constant; the family; its parameters by term.
PLANTED = {
    "mixture": (
        lambda z: np.log(0.35 * stats.norm(-1.1, 0.4).pdf(z) + 0.65 * stats.norm(0.8, 0.5).pdf(z)),
        "mixture of 2 Gaussians",
        [(0.35, 0.65, -1.1, 0.8, 0.4, 0.5)],
    ),
    "cosine": (
        lambda z: 2 * np.cos(3 * z) - 0.5 * z**2 + 0.3 * z,
        "polynomial of degree 2 + cosine",
        [(0.3,), (-0.5,), (2.0, 3.0, 0.0)],
    ),
    "laplace": (stats.laplace(0.5, 0.6).logpdf, "Laplace", [(0.5, 0.6)]),
    "skewed": (stats.skewnorm(4, -0.8, 1).logpdf, "skew-normal", [(-0.8, 1.0, 4.0)]),
    "gumbel": (stats.gumbel_r(-0.5, 0.5).logpdf, "Gumbel", [(-0.5, 0.5)]),
    "normal": (stats.norm(0.4, 0.7).logpdf, "normal", [(0.4, 0.7)]),
    "outside": (sawtooth, None, None),
}


def plant(prior, log_densities):
    """The prior with spline energies fitted to log-densities, one for each coordinate."""
    basis = prior.energies.basis
    z = np.linspace(LO, HI, 4001)
    features = np.asarray(features_on(basis, jnp.asarray(z[None], jnp.float32))[0], np.float64)
    log_pi = np.asarray(prior.pi_0.log_density(jnp.asarray(z)), np.float64)
    rows = [np.linalg.lstsq(features, f(z) - log_pi, rcond=None)[0] for f in log_densities]
    coefficients = jnp.asarray(np.array(rows)[:, None, :], jnp.float32)
    return eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, coefficients)


@pytest.fixture(scope="module")
def prior():
    start = UnivariatePrior(
        1, len(PLANTED), key=jax.random.key(0), domain=(LO, HI), basis="bspline", grid_size=120,
        activation=None, cells=512,
    )  # fmt: skip
    return plant(start, [f for f, *_ in PLANTED.values()])


@pytest.fixture(scope="module")
def fits(prior):
    return fit_prior(prior)


SMOOTH = ("mixture", "skewed")  # whose tables are small


@pytest.fixture(scope="module")
def model(prior):
    rows = jnp.array([list(PLANTED).index(name) for name in SMOOTH])
    few = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, replace_fn=lambda c: c[rows])
    few = modified(few, shape=(2, 1))
    return KAEM(few, KAN(2, (6, 6, 1), key=jax.random.key(1), depth=1), noise=0.2)


@pytest.fixture(scope="module")
def few_fits(fits):
    rows = [fits.fits[list(PLANTED).index(name)] for name in SMOOTH]
    placed = tuple(dataclasses.replace(fit, place=(i, 0)) for i, fit in enumerate(rows))
    return dataclasses.replace(fits, shape=(2, 1), fits=placed)


@pytest.mark.parametrize("name", [n for n in PLANTED if n != "outside"])
def test_planted_densities_are_recovered(fits, name):
    _, expected, parameters = PLANTED[name]
    fit = fits.fits[list(PLANTED).index(name)]
    assert family(fit.form) == expected
    for found, planted in zip(fit.form.values, parameters, strict=True):
        np.testing.assert_allclose(found, planted, rtol=0.02, atol=1e-12)
    assert fit.good
    assert fit.r_squared > 0.999


def test_densities_outside_the_library_are_reported(fits, prior):
    fit = fits.fits[-1]
    assert not fit.good
    assert fit.verdict == "no good closed form"
    assert fit.relative_error > 0.02 or fit.kl > 1e-3
    assert fits.good == len(fits) - 1
    with pytest.raises(UserError, match=r"1 of 7 coordinates have no good closed form"):
        symbolic_prior(prior, fits)


def test_measures_are_what_quadrature_says(fits, prior):
    """KL, normaliser and errors anew, on a finer grid, from splines in double precision."""
    z = np.linspace(LO, HI, 20001)
    for name in ("mixture", "outside"):
        fit = fits.fits[list(PLANTED).index(name)]
        learned = oracle.energy(prior.energies, fit.place[0], 0)(z) - z**2 / 2
        p, q = np.exp(learned), np.exp(fit.form(z))
        log_z = np.log(np.trapezoid(q, z))
        p, q = p / np.trapezoid(p, z), q / np.trapezoid(q, z)
        np.testing.assert_allclose(fit.log_normaliser, log_z, atol=1e-4)
        kl = np.trapezoid(p * np.log(p / q), z)
        np.testing.assert_allclose(fit.kl, kl, rtol=0.02, atol=1e-6)
        np.testing.assert_allclose(fit.density_error, np.abs(q - p).max(), rtol=0.1, atol=1e-4)
        np.testing.assert_allclose(fit.relative_error, fit.density_error / p.max(), rtol=0.02)
        price = fit.parameters * np.log(fits.samples)
        np.testing.assert_allclose(fit.bic, 2 * fits.samples * fit.kl + price)


def test_the_symbolic_prior_is_the_planted_one(fits, prior):
    """Its CDF, log-density, score and samples against SciPy's truncated distributions."""
    made = symbolic_prior(prior, fits, only_good=False).cache()
    truths = {
        "laplace": stats.laplace(0.5, 0.6),
        "skewed": stats.skewnorm(4, -0.8, 1),
        "gumbel": stats.gumbel_r(-0.5, 0.5),
        "normal": stats.norm(0.4, 0.7),
    }
    z = np.linspace(LO + 0.1, HI - 0.1, 41)
    cdf = np.asarray(made.cdf(jnp.broadcast_to(jnp.asarray(z)[:, None, None], (41, *made.shape))))
    samples = np.asarray(made.sample(jax.random.key(5), 4000))
    point = jnp.asarray(np.linspace(-1, 1, made.shape[0])[:, None], jnp.float32)
    step = 1e-2
    evaluate = eqx.filter_jit(
        lambda m: (
            m.energies.curves(jnp.asarray(z)[None]),
            m.log_normaliser(),
            *(m.energies(point + s) for s in (0, step, -step)),
        )
    )
    curves, log_z, middle, up, down = map(np.asarray, evaluate(made))
    for name, truth in truths.items():
        q = list(PLANTED).index(name)
        mass = truth.cdf(HI) - truth.cdf(LO)
        np.testing.assert_allclose(cdf[:, q, 0], (truth.cdf(z) - truth.cdf(LO)) / mass, atol=2e-3)
        near = truth.pdf(z) > 1e-3
        np.testing.assert_allclose(
            (curves[q, 0] - log_z[q, 0])[near], truth.logpdf(z)[near] - np.log(mass), atol=0.02
        )
        # Kolmogorov and Smirnov: four tests at 1e-5 each.
        found = stats.kstest(
            samples[:, q, 0], lambda x, t=truth, m=mass: (t.cdf(x) - t.cdf(LO)) / m
        )
        assert found.pvalue > 1e-5
    np.testing.assert_allclose(float(made.log_prob(point)), (middle - log_z).sum(), rtol=1e-4)
    smooth = [q for q, n in enumerate(PLANTED) if n != "outside"]
    np.testing.assert_allclose(
        np.asarray(made.score(point))[smooth],
        ((up - down) / (2 * step))[smooth],
        atol=0.02,
    )


EXAMPLES = {
    "linear": (0.7,),
    "square": (-0.4,),
    "cube": (0.2,),
    "fourth": (-0.1,),
    "cosine": (1.5, 2.5, 0.3),
    "bump": (2.0, 0.4, 0.5),
    "morlet": (1.2, -0.3, 0.6, 3.0),
    "step": (2.0, 0.1, 0.2),
    "absolute": (-1.3, 0.2),
    "normal": (0.3, 0.7),
    "laplace": (0.3, 0.7),
    "skew-normal": (-0.5, 0.8, -3.0),
    "gumbel": (0.3, -0.6),
    "logistic": (0.3, 0.6),
    "student": (0.3, 0.6, 3.5),
    "lognormal": (0.2, 0.6),
    "gamma": (2.5, 0.6),
    "beta": (2.5, 1.5, -0.5, 4.5),
    "gaussians-2": (0.3, 0.7, -1.0, 1.0, 0.3, 0.6),
    "gaussians-3": (0.3, 0.3, 0.4, -1.0, 0.2, 1.0, 0.3, 0.4, 0.6),
    "gaussians-4": (0.2, 0.2, 0.2, 0.4, -1.0, 0.2, 1.0, 2.0, 0.3, 0.4, 0.6, 0.5),
}
LOG_PDFS = {
    "normal": stats.norm(0.3, 0.7),
    "laplace": stats.laplace(0.3, 0.7),
    "skew-normal": stats.skewnorm(-3, -0.5, 0.8),
    "gumbel": stats.gumbel_l(0.3, 0.6),
    "logistic": stats.logistic(0.3, 0.6),
    "student": stats.t(3.5, 0.3, 0.6),
    "lognormal": stats.lognorm(0.6, scale=math.exp(0.2)),
    "gamma": stats.gamma(2.5, scale=0.6),
    "beta": stats.beta(2.5, 1.5, -0.5, 5.0),
}


@pytest.mark.parametrize("name", list(TERMS))
def test_every_term_is_one_function_in_all_its_forms(name):
    """NumPy, JAX, SymPy and Python text agree; whole densities are SciPy's up to a constant."""
    import sympy

    form = ClosedForm((name,), (EXAMPLES[name],))
    z = np.linspace(0.05, 2.9, 25)
    expected = form(z)
    scope = {"math": math}
    exec(_definitions(), scope)
    code = eval(f"lambda z: {python_expression(form)}", scope)
    np.testing.assert_allclose([code(x) for x in z], expected, atol=1e-10)
    lambdified = sympy.lambdify(sympy.Symbol("z", real=True), expression(form), "scipy")
    np.testing.assert_allclose(lambdified(z), expected, atol=1e-10)
    np.testing.assert_allclose(form(jnp.asarray(z), JAX), expected, atol=2e-6, rtol=2e-6)
    assert "z" in text(form)
    assert latex(form)
    assert mathml(form).startswith("<math")
    if name in LOG_PDFS:
        difference = LOG_PDFS[name].logpdf(z) - expected
        np.testing.assert_allclose(difference, difference[0], atol=1e-9)
    if name.startswith("gaussians"):
        k = len(EXAMPLES[name]) // 3
        w, mean, std = np.reshape(EXAMPLES[name], (3, k))
        pdf = sum(w[i] * stats.norm(mean[i], std[i]).pdf(z) for i in range(k))
        np.testing.assert_allclose(np.exp(expected) / np.sqrt(2 * np.pi), pdf, rtol=1e-9)


def _definitions():
    from kaem.interpret.closed_forms.printing import _DEFINITIONS

    return "\n".join(_DEFINITIONS.values())


def test_written_formulas_run_alone_and_are_normalised(fits):
    scope = {}
    exec(python_source(fits), scope)
    z = np.linspace(LO, HI, 3001)
    for fit in fits:
        function = scope["FUNCTIONS"][tuple(i + 1 for i in fit.place)]
        log_p = np.array([function(x) for x in z])
        np.testing.assert_allclose(np.trapezoid(np.exp(log_p), z), 1, atol=1e-4)
        np.testing.assert_allclose(log_p, fit.form(z) - fit.log_normaliser, atol=1e-6)
    assert r"\cos{\left(3" in latex_table(fits)
    assert "no good closed form" in latex_table(fits)


def test_formulas_without_sympy_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(UserError, match=r"pip install 'kaem\[symbolic\]'"):
        text(ClosedForm())


def test_json_round_trip_is_exact(fits, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(to_json(fits)))
    assert read_fits(tmp_path / "s.json") == fits


def _set(path, value):
    def change(data):
        *parents, last = path
        for key in parents:
            data = data[key]
        data[last] = value

    return change


BROKEN = {
    "code for a term": _set(("coordinates", 0, "terms", 0, "term"), "__import__('os').system('x')"),
    "code for a number": _set(("coordinates", 5, "terms", 0, "parameters", "std"), "exit()"),
    "an unknown parameter": _set(("coordinates", 5, "terms", 0, "parameters", "evil"), 1.0),
    "a negative width": _set(("coordinates", 5, "terms", 0, "parameters", "std"), -1.0),
    "a number that is none": _set(("coordinates", 5, "terms", 0, "parameters", "std"), math.nan),
    "a truth value": _set(("coordinates", 5, "kl"), True),
    "a form that overflows": _set(
        ("coordinates", 5, "terms", 0),
        {"term": "fourth", "parameters": {"amplitude": 1e308}},
    ),
    "a list of terms that is none": _set(("coordinates", 5, "terms"), 7),
    "a place twice": _set(("coordinates", 5, "place"), [0, 0]),
    "a domain the wrong way": _set(("coordinates", 5, "domain"), [3, -3]),
    "a wrong shape": _set(("shape",), [3, 1]),
    "a huge shape": _set(("shape",), [10**9, 10**9]),
    "another format": _set(("format",), "pickle"),
    "another target": _set(("of",), "exec"),
    "another reference": _set(("reference",), "evil"),
    "no coordinates": _set(("coordinates",), None),
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_broken_json_is_refused(fits, what):
    data = copy.deepcopy(to_json(fits))
    BROKEN[what](data)
    with pytest.raises(UserError, match="closed forms"):
        from_json(data)


def test_files_that_are_no_closed_forms_are_refused(tmp_path, model):
    for content in (b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b"{}"):
        (tmp_path / "s.json").write_bytes(content)
        with pytest.raises(UserError, match=r"s\.json"):
            with_closed_forms(model, tmp_path / "s.json")
    with pytest.raises(UserError, match="could not read"):
        with_closed_forms(model, tmp_path / "missing.json")


def test_closed_forms_evaluate_alike_in_every_way():
    """Forms in mixed order: at points, on curves and in expectation, against NumPy one by one."""
    names = ["cosine", "normal", "cosine", "gumbel", "normal", "beta"]
    forms = [ClosedForm((n,), (EXAMPLES[n],)) for n in names]
    forms[2] = ClosedForm(("linear", "cosine"), ((0.3,), (1.0, 2.0, 0.1)))
    bank = ClosedForms.of(forms, (3, 2))
    z = np.random.default_rng(0).uniform(0.1, 2, (3, 2, 9))
    expected = np.array([f(x) for f, x in zip(forms, z.reshape(6, 9), strict=True)]).reshape(
        z.shape
    )
    weights, x = np.linspace(0, 1, 9), z[0]

    @eqx.filter_jit
    def everything(bank, z, x, weights):
        def total(bank):
            return bank(z[..., 0]).sum()

        each = jax.vmap(bank, in_axes=-1, out_axes=-1)(z)
        return each, bank.expectation(z, weights), bank.curves(x), eqx.filter_grad(total)(bank)

    each, mean, on_nodes, slope = everything(bank, *map(jnp.asarray, (z, x, weights)))
    np.testing.assert_allclose(each, expected, atol=2e-6, rtol=1e-6)
    np.testing.assert_allclose(mean, expected @ weights, atol=1e-5, rtol=1e-6)
    curves = np.array([f(x[i % 2]) for i, f in enumerate(forms)]).reshape(3, 2, 9)
    np.testing.assert_allclose(on_nodes, curves, atol=2e-6, rtol=1e-6)
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in slope.groups)
    with pytest.raises(ValueError, match="do not fill"):
        ClosedForms.of(forms, (3, 3))


def test_thousands_of_forms_trace_one_formula_for_each_structure():
    def size(count):
        pair = [ClosedForm((n,), (EXAMPLES[n],)) for n in ("normal", "cosine")]
        bank = ClosedForms.of(pair * (count // 2), (count // 2, 2))
        jaxpr = jax.make_jaxpr(lambda z: bank(z))(jnp.zeros((count // 2, 2)))
        return len(jaxpr.eqns)

    assert size(3240) == size(4)


def test_symbolic_models_are_saved_and_loaded(few_fits, model, tmp_path):
    swapped = with_closed_forms(model, few_fits)
    swapped.save(tmp_path / "m.safetensors")
    loaded = kaem.load(tmp_path / "m.safetensors")
    key = jax.random.key(2)
    np.testing.assert_array_equal(swapped.sample(key, 5), loaded.sample(key, 5))
    assert loaded.prior.reference == "none"
    u = jax.random.uniform(key, (50, *model.prior.shape), minval=0.001, maxval=0.999)
    a, b = (np.asarray(m.prior.inverse_cdf(u)) for m in (model, loaded))
    np.testing.assert_allclose(a, b, atol=2e-3)
    one = Fits("log-density", "gaussian", (1, 1), 9, few_fits.fits[:1])
    with pytest.raises(UserError, match="shape"):
        with_closed_forms(model, one)


def test_energies_of_a_mixture_prior():
    """One Morlet over a Gaussian reference is its own closed form; the swap keeps the reference."""
    prior = MixturePrior(1, 1, key=jax.random.key(0), domain=(-4, 4), cells=512)
    basis = prior.energies.basis
    basis = eqx.tree_at(
        lambda b: (b.centre, b.raw_width, b.weight, b.tau),
        basis,
        (jnp.full((1, 1), 0.3), jnp.full((1, 1), 0.6), jnp.full((1, 1), 1.5), jnp.asarray(2.0)),
    )
    prior = eqx.tree_at(lambda p: p.energies.basis, prior, basis)
    fits = fit_prior(prior, of="energy")
    width = math.hypot(0.6, 0.05)
    assert fits.fits[0].form.names == ("morlet",)
    np.testing.assert_allclose(fits.fits[0].form.values[0], (1.5, 0.3, width, 2.0), rtol=0.02)
    made = symbolic_prior(prior, fits)
    assert made.reference == prior.reference
    z = jnp.linspace(-3, 3, 13)[:, None]
    np.testing.assert_allclose(made.log_prob(z), prior.log_prob(z), atol=2e-3)
    np.testing.assert_allclose(made.score(z), prior.score(z), atol=5e-3)
    np.testing.assert_allclose(made.cdf(z), prior.cdf(z), atol=1e-3)
    assert from_json(json.loads(json.dumps(to_json(fits)))) == fits
    with pytest.raises(ValueError, match="log-density"):
        fit_prior(prior, of="densities")


def test_the_figure_shows_the_worst_fits(fits, prior, tmp_path):
    shown = symbolic_sheet(prior, fits, tmp_path / "s.png", count=3)
    assert_drawn(tmp_path / "s.png", 1.8 * 3)
    errors = [np.abs(c.residual).max() for c in shown]
    assert errors == sorted(errors, reverse=True)
    assert shown[0].fit.place == (list(PLANTED).index("outside"), 0)
    for c in comparisons(prior, fits, len(fits)):
        np.testing.assert_allclose(np.trapezoid(c.learned, c.z), 1, atol=1e-6)
        np.testing.assert_allclose(np.trapezoid(c.closed, c.z), 1, atol=1e-6)
        np.testing.assert_allclose(np.abs(c.residual).max(), c.fit.relative_error, rtol=1e-6)


def test_the_command_writes_forms_and_measures_their_cost(tmp_path, capsys):
    truth = [ClosedForm(("normal",), ((0.4, 0.7),)), ClosedForm(("gumbel",), ((-0.2, 0.4),))]
    prior = UnivariatePrior(
        1, 2, key=jax.random.key(0), domain=(LO, HI), reference="none", cells=512
    )
    prior = prior.with_energies(ClosedForms.of(truth, (2, 1)), "none")
    KAEM(prior, KAN(2, (6, 6, 1), key=jax.random.key(1), depth=1)).save(tmp_path / "m.safetensors")
    assert main(["symbolic", str(tmp_path / "m.safetensors"), "--count", "2"]) == 0
    content = json.loads((tmp_path / "symbolic.json").read_text())
    assert content["good"] == 2
    assert content["cost"]["total_kl"] < 1e-8
    assert content["cost"]["rms_difference"] < 1e-4
    for name in ("json", "py", "tex", "safetensors"):
        assert (tmp_path / f"symbolic.{name}").is_file()
    assert_drawn(tmp_path / "figures" / "symbolic.png", 3.8)
    assert kaem.load(tmp_path / "symbolic.safetensors").sample(jax.random.key(0), 3).shape[0] == 3
    assert read_fits(tmp_path / "symbolic.json").fits[0].form.names == ("normal",)
    shown = capsys.readouterr()
    assert "2 of 2 densities have a good closed form" in shown.out
    assert "not measured" in shown.err  # a model file has no data
    with pytest.raises(UserError, match="overwritten"):
        symbolic(tmp_path / "symbolic.safetensors")
    with pytest.raises(UserError, match="samples-for-bic"):
        symbolic(tmp_path, samples=1)
    with pytest.raises(UserError, match="count"):
        symbolic(tmp_path, count=0)


def test_an_interrupted_search_goes_on_from_what_it_found(few_fits, model, tmp_path, monkeypatch):
    """The first form is kept when the second is interrupted, and not looked for again."""
    model.save(tmp_path / "m.safetensors")
    asked, told = [], []

    def interrupted(prior, places, of, samples):
        asked.append(list(places))
        yield few_fits.fits[len(few_fits) - len(asked[-1])]
        if len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(writing, "fit_places", interrupted)
    with pytest.raises(KeyboardInterrupt):
        symbolic(tmp_path / "m.safetensors", say=told.append)
    assert told == ["1 of 2 closed forms are kept: the same command goes on from there"]
    found = symbolic(tmp_path / "m.safetensors", say=told.append)
    assert asked == [[(0, 0), (1, 0)], [(1, 0)]]
    assert found.fits == dataclasses.replace(few_fits, samples=found.fits.samples)
    assert not (tmp_path / ".symbolic.partial.json").exists()
    assert read_fits(found.files[0]) == found.fits


def test_rivals_have_no_densities_to_write_down(tmp_path):
    from kaem.baselines import VAE
    from kaem.layers.encoder import Encoder

    key = jax.random.key(0)
    encoder = Encoder((8, 8, 1), 4, key=key, widths=(4, 4))
    VAE(encoder, KAN(4, (8, 8, 1), key=key, depth=1)).save(tmp_path / "v.safetensors")
    with pytest.raises(UserError, match=r"needs a KAEM.*got a VAE"):
        symbolic(tmp_path / "v.safetensors")
