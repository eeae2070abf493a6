"""ONNX graphs in onnxruntime against JAX, and against densities inverted in double precision."""

import re
import sys
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import kaem
from kaem import CNN, KAEM, KAN, MixturePrior, UnivariatePrior, UserError
from kaem.bases import ACTIVATIONS, BASES
from kaem.export import TARGETS
from kaem.export.onnx.graph import Graph
from kaem.export.onnx.layers import inverse_cdf
from kaem.export.onnx.target import BATCHES, TOLERANCE, Compiled
from kaem.priors.inverse_transform import Table

HOW = "needs onnx and onnxruntime: pip install 'kaem[export]'"
onnx = pytest.importorskip("onnx", reason=HOW)
onnxruntime = pytest.importorskip("onnxruntime", reason=HOW)

target = TARGETS["onnx"]


@cache
def univariate():
    prior = UnivariatePrior(2, 3, key=jax.random.key(0), cells=64, amplitude=20.0)
    return prior.cache()


@cache
def kan(basis="rbf", activation="relu", output="sigmoid", shape=(4, 3), depth=2):
    generator = KAN(
        3, shape, key=jax.random.key(1), basis=basis, activation=activation, output=output,
        grid_size=5, amplitude=5.0, depth=depth,
    )  # fmt: skip
    return KAEM(univariate(), generator)


def cnn(shape=(8, 12, 3), prior=None, hidden=()):
    if prior is None:
        prior = MixturePrior(2, 5, key=jax.random.key(0), cells=64, domain=(-4.0, 4.0)).cache()
    generator = CNN(
        prior.shape[0], shape, key=jax.random.key(1), widths=(6,), slope=0.2, hidden=hidden
    )
    rng = np.random.default_rng(0)
    biases = tuple(jnp.asarray(rng.normal(size=b.shape), jnp.float32) for b in generator.biases)
    return KAEM(prior, eqx.tree_at(lambda g: g.biases, generator, biases))


MODELS = {
    **{
        f"kan-{basis}-{activation}": lambda pair=(basis, activation): kan(*pair)
        for basis, activation in zip(BASES, [*ACTIVATIONS, None, None], strict=True)
    },
    "kan-rows": lambda: kan(shape=(7,), output="identity"),
    "cnn-mixture": cnn,
    "cnn-grey": lambda: cnn((8, 12, 1), univariate()),
    "cnn-hidden": lambda: cnn(hidden=(7, 9)),
}


def written(model, folder, name="kaem"):
    for file, content in target.files(model, name).items():
        (folder / file).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_both_graphs_equal_jax_at_every_batch_size(name):
    model = MODELS[name]()
    made = target.files(model)
    u = np.random.default_rng(0).random((64, *model.prior.shape), np.float32)
    z = np.asarray(model.prior.inverse_cdf(u))
    expected = np.asarray(model.generate(u))
    assert expected.std() > 1e-2  # else there would be nothing to compare
    for takes, given in (("u", u), ("z", z)):
        session = onnxruntime.InferenceSession(made[f"kaem_{takes}.onnx"])
        for n in BATCHES:
            (x,) = session.run(["x"], {takes: given[:n]})
            assert x.dtype == np.float32
            assert x.shape == (n, *model.data_shape)
            np.testing.assert_allclose(x, expected[:n], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cells", [6, 200])
def test_the_inverse_cdf_inverts_a_density_in_double_precision(cells):
    # Two densities: a bump, and one that is all but zero in the middle.
    edges = np.linspace(-2, 3, 2 * cells + 1)
    log_density = np.stack([-0.5 * (edges - 0.7) ** 2, -8 * np.exp(-2 * (edges - 0.5) ** 2)])
    lo, hi = jnp.full(2, -2.0), jnp.full(2, 3.0)
    table = Table.build(lo, hi, jnp.asarray(log_density, jnp.float32))
    graph = Graph()
    content = graph.model(inverse_cdf(graph, table, "u", (2,)), "u", (2,), (2,))
    session = onnxruntime.InferenceSession(content)
    rng = np.random.default_rng(0)
    u = np.concatenate([np.zeros((1, 2)), np.ones((1, 2)), rng.random((500, 2))]).astype(np.float32)
    u = np.concatenate([u, np.asarray(table.knots).T])  # and where cells meet
    (z,) = session.run(["x"], {"u": u})
    np.testing.assert_allclose(z[:2], [[-2, -2], [3, 3]], atol=1e-6)
    np.testing.assert_allclose(z, np.asarray(table.inverse_cdf(u.T)).T, rtol=0, atol=2e-6)
    if cells == 6:
        return  # too few for the densities themselves
    fine = np.linspace(-2, 3, 20_001)
    density = np.exp([-0.5 * (fine - 0.7) ** 2, -8 * np.exp(-2 * (fine - 0.5) ** 2)])
    for i in range(2):
        whole = CubicSpline(fine, density[i]).antiderivative()
        found = whole(z[:, i]) / whole(3.0)
        np.testing.assert_allclose(found, u[:, i], rtol=0, atol=1e-5)


def test_quantiles_outside_the_unit_interval_stay_in_the_domain():
    model = kan()
    session = onnxruntime.InferenceSession(target.files(model)["kaem_u.onnx"])
    u = np.full((1, *model.prior.shape), 1.5, np.float32)
    for given, inside in ((u, np.ones_like(u)), (-u, np.zeros_like(u))):
        a, b = (session.run(["x"], {"u": x})[0] for x in (given, inside))
        np.testing.assert_array_equal(a, b)


def test_files_are_deterministic_valid_and_described():
    model = cnn()
    made = target.files(model, "svhn")
    assert made == target.files(model, "svhn")
    assert list(made) == ["svhn_u.onnx", "svhn_z.onnx"]
    for takes in "uz":
        graph = onnx.load_from_string(made[f"svhn_{takes}.onnx"])
        onnx.checker.check_model(graph, full_check=True)
        shapes = [
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in (*graph.graph.input, *graph.graph.output)
        ]
        assert shapes == [["n", 5], ["n", 8, 12, 3]]
        assert graph.producer_name == "kaem"
        assert graph.producer_version == kaem.__version__


def test_verification_accepts_what_was_written_and_finds_a_changed_weight(tmp_path):
    model = kan(depth=1)
    folder = written(model, tmp_path, "digits")
    found = target.verify(folder, model, samples=100, repeats=3)
    assert found["tool"] == f"onnxruntime {onnxruntime.__version__}"
    for takes in "uz":
        assert found[f"{takes}_mismatches"] == found[f"{takes}_over_1e-5"] == 0
        assert found[f"{takes}_largest_difference"] <= TOLERANCE
        assert found[f"{takes}_rounding_of_jax"] < TOLERANCE
        assert found[f"{takes}_bytes"] == (folder / f"digits_{takes}.onnx").stat().st_size
    ratio = found["onnxruntime_microseconds"] / found["jax_microseconds"]
    assert found["onnxruntime_over_jax"] == pytest.approx(ratio)

    path = folder / "digits_z.onnx"
    graph = onnx.load(path)
    weights = max(graph.graph.initializer, key=lambda constant: len(constant.raw_data))
    values = onnx.numpy_helper.to_array(weights) + np.float32(1e-3)
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    onnx.save(graph, path)
    found = target.verify(folder, model, samples=100, repeats=1)
    assert found["u_mismatches"] == 0
    assert found["z_mismatches"] > 100


def test_double_precision_is_double_precision():
    model = kan()
    u = np.random.default_rng(0).random((5, *model.prior.shape), np.float32)
    z = np.asarray(model.prior.inverse_cdf(u))
    found = Compiled.of(model, "decode").in_double(z)
    x = z.astype(np.float64).sum(axis=2)
    for layer in model.generator.layers:
        basis = layer.basis
        grid = np.asarray(basis.grid, np.float64)
        step = np.diff(grid, axis=1)
        spacing = np.concatenate(
            [step[:, :1], (step[:, 1:] + step[:, :-1]) / 2, step[:, -1:]], axis=1
        )
        scaled = (x[..., None] - grid) / (spacing * np.exp(float(basis.log_tau)))
        features = np.exp(-0.5 * scaled**2)
        weight = np.asarray(layer.base_weight, np.float64)
        coefficients = np.asarray(basis.coefficients, np.float64)
        x = np.einsum("npb,qpb->nq", features, coefficients) + np.maximum(x, 0) @ weight.T
    expected = (1 / (1 + np.exp(-x))).reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_folder_without_the_graphs_is_refused(tmp_path):
    with pytest.raises(UserError, match=re.escape("holds 0 files *_u.onnx, expected one")):
        target.verify(tmp_path, kan())


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, tmp_path):
    model = kan()
    folder = written(model, tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime.*pip install 'kaem\[export\]'"):
        target.verify(folder, model)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"package onnx.*pip install 'kaem\[export\]'"):
        target.files(model)


def test_what_is_no_graph_is_refused_by_name():
    class Strange(type(kan().generator.layers[0].basis)):
        pass

    model = kan()
    basis = model.generator.layers[0].basis
    strange = Strange(basis.grid, basis.coefficients, basis.log_tau)
    model = eqx.tree_at(lambda m: m.generator.layers[0].basis, model, strange)
    with pytest.raises(UserError, match="Strange functions cannot be written"):
        target.files(model)
