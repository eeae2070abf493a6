"""The KAN generator as the theorem writes it, and the model's file."""

import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import kaem
from kaem import KAEM, KAN, UnivariatePrior, UserError
from kaem.bases import BASES
from kaem.bench import oracle


def make(basis="rbf", depth=2, output="sigmoid", **kwargs):
    a, b = jax.random.split(jax.random.key(0))
    prior = UnivariatePrior(2, key=a, basis=basis, **kwargs)
    generator = KAN(5, (3, 4, 1), key=b, depth=depth, output=output, basis=basis)
    return KAEM(prior, generator, noise=0.2, generator_noise=0.1)


def test_widths_chain_as_kart_says():
    generator = KAN(81, (28, 28, 1), key=jax.random.key(0), depth=4)
    shapes = [layer.basis.coefficients.shape[:2] for layer in generator.layers]
    assert shapes == [(163, 81), (327, 163), (655, 327), (784, 655)]


@pytest.mark.parametrize("basis", list(BASES))
def test_generator_is_the_papers_formula(basis):
    """eq. generator, with sums and univariate functions evaluated one by one in float64."""
    model = make(basis, depth=2)
    z = np.asarray(model.prior.sample(jax.random.key(1), 1)[0], np.float64)
    x = z.sum(axis=1)
    for layer in model.generator.layers:
        outputs = layer.curves(jnp.zeros((len(x), 1))).shape[0]
        x = np.array(
            [
                sum(oracle.energy(layer, o, i)(np.array([x[i]]))[0] for i in range(len(x)))
                for o in range(outputs)
            ]
        )
    expected = special.expit(x)
    ours = model.decode(jnp.asarray(z, jnp.float32)[None])[0]
    np.testing.assert_allclose(np.asarray(ours).ravel(), expected, atol=2e-5)


def test_noise_enters_before_the_activation():
    model = make()
    z = model.prior.sample(jax.random.key(1), 4)
    quiet, noisy = model.decode(z), model.decode(z, jax.random.key(2))
    added = np.asarray(jax.scipy.special.logit(noisy) - jax.scipy.special.logit(quiet)).ravel()
    assert stats.kstest(added / 0.1, "norm").pvalue > 1e-3
    identity = make(output="identity")
    assert (np.asarray(identity.decode(z)) < 0).any()


def test_log_likelihood_matches_scipy():
    model = make()
    x, means = (jax.random.uniform(jax.random.key(i), (n, 3, 4, 1)) for i, n in ((0, 5), (1, 7)))
    matrix = model.log_likelihood_matrix(x, means)
    for b in range(5):
        for s in range(7):
            mean = np.asarray(means[s], np.float64).ravel()
            exact = stats.norm(mean, 0.2).logpdf(np.asarray(x[b]).ravel()).sum()
            np.testing.assert_allclose(matrix[b, s], exact, rtol=1e-5, atol=1e-3)


def test_regridding_the_generator_preserves_its_images():
    """Smooth functions over the inputs that latents really give, then one more grid update."""
    model = make(depth=2)
    z = model.prior.sample(jax.random.key(1), 500)
    generator = model.generator.regrid(z, 0.3)
    for i, layer in enumerate(generator.layers):
        phase = jax.random.uniform(
            jax.random.key(i), layer.basis.coefficients.shape[:2], maxval=6.0
        )
        lo, hi = layer.basis.grid[:, :1], layer.basis.grid[:, -1:]
        t = (layer.basis.grid - lo) / (hi - lo)
        smooth = 0.2 * jnp.sin(3 * t + phase[..., None])
        generator = eqx.tree_at(lambda g, i=i: g.layers[i].basis.coefficients, generator, smooth)
        generator = generator.regrid(z, 0.3) if i == 0 else generator
    moved = generator.regrid(model.prior.sample(jax.random.key(2), 500), 0.05)
    a, b = (np.asarray(jax.vmap(g)(z)) for g in (generator, moved))
    # A grid of quantiles has few centres in the tails, where single pixels move by up to 0.06.
    assert np.sqrt(np.mean((a - b) ** 2)) < 0.03 * a.std()


def test_generate_at_uniforms_is_sample():
    model = make().prepared()
    key = jax.random.key(4)
    u = jax.random.uniform(key, (6, 5, 2))
    np.testing.assert_array_equal(model.generate(u), model.sample(key, 6))
    np.testing.assert_allclose(model.generate(u[0]), model.generate(u)[0], atol=1e-6)
    assert model.generate(u.reshape(2, 3, 5, 2)).shape == (2, 3, 3, 4, 1)


@pytest.mark.parametrize("basis", list(BASES))
def test_save_and_load(basis, tmp_path):
    model = make(basis)
    model.save(tmp_path / "m.safetensors")
    again = kaem.load(tmp_path / "m.safetensors")
    z = model.prior.sample(jax.random.key(0), 3)
    np.testing.assert_array_equal(model.decode(z), again.decode(z))
    np.testing.assert_array_equal(model.prior.energies(z[0]), again.prior.energies(z[0]))
    assert again.prior.cached is not None
    model.save(tmp_path / "n.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()


def rewrite(path, change):
    """Alter a model file's header with `change(structure)`."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    structure = json.loads(header["__metadata__"]["structure"])
    change(header["__metadata__"], structure)
    if "structure" in header["__metadata__"]:
        header["__metadata__"]["structure"] = json.dumps(structure)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def unknown_class(meta, structure):
    structure["class"] = "os.system"


def missing_field(meta, structure):
    del structure["fields"]["noise"]


def other_format(meta, structure):
    meta["format"] = "other"


def wrong_shape(meta, structure):
    structure["fields"]["prior"]["fields"]["shape"] = {"tuple": [{"value": 6}, {"value": 2}]}


@pytest.mark.parametrize("change", [unknown_class, missing_field, other_format, wrong_shape])
def test_altered_files_are_refused(change, tmp_path):
    path = tmp_path / "m.safetensors"
    make().save(path)
    rewrite(path, change)
    with pytest.raises(UserError, match="model"):
        kaem.load(path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x80\x04\x95pickle"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a readable KAEM model"):
        kaem.load(path)


def test_a_structure_of_nothing_but_brackets_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    make().save(path)
    rewrite(path, lambda meta, structure: meta.pop("structure"))
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    for shape in ("[" * 200_000, '{"tuple":[' * 400 + "]}" * 400):
        header["__metadata__"]["structure"] = shape
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
        with pytest.raises(UserError, match="not a readable KAEM model"):
            kaem.load(path)


def test_only_a_runs_model_is_said_to_be_written_anew_by_resuming(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match="from where it came") as alone:
        kaem.load(path)
    assert "--resume" not in str(alone.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"--out {tmp_path} --resume"):
        kaem.load(tmp_path)
    other = tmp_path / "symbolic.safetensors"
    other.write_bytes(b"not a model")
    with pytest.raises(UserError, match="from where it came"):
        kaem.load(other)


def test_truncated_and_nonfinite_models_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    make().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="truncated"):
        kaem.load(path)
    bad = eqx.tree_at(lambda m: m.prior.domain, make(), jnp.full((2, 2), jnp.nan))
    bad.save(path)
    with pytest.raises(UserError, match="non-finite"):
        kaem.load(path)
    with pytest.raises(UserError, match="no model"):
        kaem.load(tmp_path / "absent.safetensors")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    make().save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        make(depth=1).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".*")) == []


def test_bad_models_are_refused():
    model = make()
    with pytest.raises(ValueError, match="positive"):
        KAEM(model.prior, model.generator, noise=0.0)
    with pytest.raises(ValueError, match="depth"):
        KAN(3, (2,), key=jax.random.key(0), depth=0)
    with pytest.raises(ValueError, match="sigmoid"):
        KAN(3, (2,), key=jax.random.key(0), output="softmax")


def test_public_names():
    for name in kaem.__all__:
        assert getattr(kaem, name) is not None
    assert "KAEM" in dir(kaem)
    with pytest.raises(AttributeError, match="nothing"):
        _ = kaem.nothing


@pytest.mark.parametrize("name", ["jax.numpy.savez", "jax.numpy.load", "equinox.nn.WeightNorm"])
def test_files_name_nothing_that_does_more_than_compute(tmp_path, name):
    """A file says what is called with what: functions that write are not among what it may name."""
    path, victim = tmp_path / "m.safetensors", tmp_path / "victim.npz"
    victim.write_bytes(b"precious")
    make().save(path)
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    structure = json.loads(header["__metadata__"]["structure"])
    structure["fields"]["generator"]["fields"]["layers"] = (
        {"class": name, "fields": {"layer": {"value": str(victim)}}}
        if "nn." in name
        else {"function": name}
    )
    header["__metadata__"]["structure"] = json.dumps(structure)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(UserError, match="does not know"):
        kaem.load(path)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("noise",), 0.0),
        (("noise",), -1.0),
        (("noise",), "x"),
        (("prior", "cells"), 33),
        (("prior", "cells"), 2**31),
        (("prior", "cells"), 10**30),
        (("prior", "reference"), "haar"),
    ],
)
def test_what_a_constructor_refuses_a_file_cannot_bring_in(tmp_path, where, value):
    path = tmp_path / "m.safetensors"
    make().save(path)
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    structure = json.loads(header["__metadata__"]["structure"])
    fields = structure["fields"]
    for part in where[:-1]:
        fields = fields[part]["fields"]
    fields[where[-1]] = {"value": value}
    header["__metadata__"]["structure"] = json.dumps(structure)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(UserError, match="not a readable KAEM model"):
        kaem.load(path)
