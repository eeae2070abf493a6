"""The model as tables and as C, compiled and compared with the integer reference and the model."""

import subprocess
from dataclasses import replace

import jax
import numpy as np
import pytest

from kaem import KAEM, KAN, UnivariatePrior, UserError
from kaem.export import TARGETS, tools
from kaem.export.c import bench, twin
from kaem.export.text import array, smallest
from support.random_integers import MODELS

c, lut = TARGETS["c"], TARGETS["lut"]

MISMATCHES = [
    "prior_mismatches",
    "image_mismatches",
    "sample_mismatches",
    "stream_mismatches",
    "quantile_mismatches",
    "sanitised_mismatches_c",
    "sanitised_mismatches_cpp",
]


def kan(shape, **settings):
    keys = jax.random.split(jax.random.key(0), 2)
    prior = UnivariatePrior(2, 3, key=keys[0], cells=64).cache()
    return KAEM(prior, KAN(3, shape, key=keys[1], grid_size=5, amplitude=30.0, **settings))


def written(folder, made):
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_c_equals_the_reference(name, tmp_path, needs):
    needs("gcc", "g++")
    q = MODELS[name]()
    made = c.files(q, "small")
    assert made == c.files(q, "small")
    found = c.verify(written(tmp_path, made), q, name="small", samples=3_000, images=200)
    assert [found[what] for what in MISMATCHES] == [0] * len(MISMATCHES)
    assert (found["prior_samples"], found["images"]) == (3_000, 200)
    # What was compared is neither constant nor all at the ends, and scaled in 32 bits where these suffice.
    drawn = q.sample(np.arange(99))
    assert np.mean((drawn > drawn.min()) & (drawn < drawn.max())) > 0.2
    assert ("small_scale_32(" in made["small.c"].decode()) == ("16" not in name)


def test_a_model_and_its_float_twin(tiny_cnn, tmp_path, needs):
    needs("gcc", "g++")
    model, q = tiny_cnn
    assert q.model.prior is model.prior
    written(tmp_path, c.files(q))
    found = c.verify(tmp_path, q, samples=1_000, images=50)
    assert [found[what] for what in MISMATCHES] == [0] * len(MISMATCHES)
    assert found["float_difference"] < 1e-5
    drawn = ("sample_mismatches", "stream_mismatches", "quantile_mismatches", "uniformity_failures")
    assert [found[f"float_{what}"] for what in drawn] == [0] * 4
    assert 0 < found["microseconds_o3"] < 1e5


def test_verification_sees_one_wrong_number(tmp_path, needs):
    needs("gcc", "g++")
    q = MODELS["kan"]()
    made = c.files(q)
    source = made["kaem.c"].decode()
    at = source.index("kaem_words[6][65] = {\n{") + len("kaem_words[6][65] = {\n{")
    written(tmp_path, made | {"kaem.c": f"{source[:at]}1 + {source[at:]}".encode()})
    found = c.verify(tmp_path, q, samples=10_000, images=10)
    # The first word of the first latent goes from 0 to 1. The 512 of its 1024 quantiles that are nearer to it than to the
    # next round differently: 1 of 128, 78 samples of 10,000. Out of 30 to 140 once in 10^8.
    assert 30 < found["prior_mismatches"] < 140


@pytest.mark.parametrize(
    ("basis", "activation"),
    [("rbf", "silu"), ("bspline", "identity"), ("chebyshev", None), ("fourier", "relu")],
)
def test_every_shared_basis_has_a_float_twin(basis, activation, tmp_path, needs):
    needs("gcc", "g++")
    model = kan((5,), basis=basis, activation=activation, output="identity", depth=1)
    written(tmp_path, {name: text.encode() for name, text in twin.files(model, "twin").items()})
    found = bench.verify_twin(tmp_path, model, "twin", 64)
    assert found["float_difference"] < 1e-5
    assert found["float_mismatches"] == 0


def test_the_example_prints_the_image_of_a_seed(tiny_cnn, tmp_path, needs):
    needs("gcc", "g++")
    _, q = tiny_cnn
    written(tmp_path, c.files(q, "small"))
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "small_example.c"]
    subprocess.run([*command, "small.c", "-o", "example"], cwd=tmp_path, check=True)
    printed = subprocess.run(["./example", "7"], cwd=tmp_path, check=True, capture_output=True)
    magic, *numbers = printed.stdout.split()
    assert (magic, *map(int, numbers[:3])) == (b"P3", 12, 8, 255)
    image = np.array([int(n) for n in numbers[3:]]).reshape(8, 12, 3)
    np.testing.assert_array_equal(image, q.sample(np.array([7]))[0])


@pytest.mark.parametrize("name", MODELS)
def test_tables_are_read_back_from_all_their_files(name, tmp_path, needs):
    needs("gcc", "g++")
    q = MODELS[name]()
    made = lut.files(q, "prior")
    assert made == lut.files(q, "prior")
    written(tmp_path, made)
    found = lut.verify(tmp_path, q, name="prior", samples=20_000)
    assert [found[f"{what}_mismatches"] for what in ("prior", "archive", "memory")] == [0, 0, 0]
    header = made["prior_tables.h"].decode()
    rows = header.split(f"prior_words[{len(q.tables.words)}][{q.tables.entries}] = {{")[1]
    numbers = rows.split("};")[0].translate(str.maketrans("{},", "   ")).split()
    np.testing.assert_array_equal(np.array(numbers, int), q.tables.words.ravel())
    with np.load(tmp_path / "prior_tables.npz", allow_pickle=False) as read:
        assert tuple(map(tuple, read["segments"].tolist())) == q.tables.segments
        np.testing.assert_array_equal(read["lo"], q.tables.lo)
        assert (read["bits"], read["interpolate"]) == (q.tables.bits, q.tables.interpolate)


def test_no_sum_exceeds_its_bound_and_the_extreme_reaches_it():
    layer = MODELS["kan-16-bits"]().layers[0]
    coordinates = np.random.default_rng(0).integers(0, 1 << 16, (20_000, 3))
    assert np.abs(layer.sums(coordinates)).max() <= layer.bound(0)
    top = (1 << 15) - 1
    extreme = replace(
        layer, tables=np.full_like(layer.tables, -top), weights=np.full_like(layer.weights, top)
    )
    extreme = replace(extreme, bias=-layer.bias)
    assert -extreme.sums(coordinates[:1]).min() == extreme.bound(0)


def test_arrays_have_the_smallest_type():
    kinds = {"uint8_t": [0, 255], "int8_t": [-128, 127], "uint16_t": [256], "int16_t": [-1, 200]}
    kinds |= {"int32_t": [-1, 1 << 16], "int64_t": [1 << 31]}
    assert all(smallest(values) == kind for kind, values in kinds.items())
    floats = array("x", np.array([0, -1.5, 1e-20, np.pi], np.float32), "float")
    assert floats == "static const float x[4] = {0.0f,-1.5f,9.99999968e-21f,3.14159274f};\n"


def test_names_that_c_cannot_have_are_refused():
    q = MODELS["kan"]()
    for target in (c, lut, TARGETS["hls"], TARGETS["verilog"]):
        with pytest.raises(UserError, match="cannot be that of a C function"):
            target.files(q, "my-model")


def test_a_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(tools.MissingTool, match="apt install iverilog"):
        tools.find("iverilog", "iverilog")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_thousand_samples_and_a_thousand_images(name, tmp_path, needs):
    needs("gcc", "g++")
    q = MODELS[name]()
    found = c.verify(written(tmp_path, c.files(q)), q)
    assert (found["prior_samples"], found["images"]) == (100_000, 1_000)
    assert [found[what] for what in MISMATCHES] == [0] * len(MISMATCHES)
