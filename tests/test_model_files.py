"""Model files: what was saved is what is loaded, and what was altered is refused."""

import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem
from kaem import KAEM, KAN, UnivariatePrior, UserError
from kaem.bases import BASES
from kaem.files import sealed
from kaem.settings import Settings
from support.encoders import SPECTRAL


def make(basis="rbf", depth=2, output="sigmoid", **kwargs):
    a, b = jax.random.split(jax.random.key(0))
    prior = UnivariatePrior(2, key=a, basis=basis, **kwargs)
    generator = KAN(5, (3, 4, 1), key=b, depth=depth, output=output, basis=basis)
    return KAEM(prior, generator, noise=0.2, generator_noise=0.1)


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
    path.write_bytes(sealed(struct.pack("<Q", len(text)) + text + data[8 + size :]))


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
        path.write_bytes(sealed(struct.pack("<Q", len(text)) + text + data[8 + size :]))
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
    # Whoever alters a file on purpose sees to its digest too.
    path.write_bytes(sealed(struct.pack("<Q", len(text)) + text + data[8 + size :]))
    with pytest.raises(UserError, match="does not know"):
        kaem.load(path)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("noise",), 0.0),
        (("noise",), -1.0),
        (("noise",), "x"),
        (("noise",), True),
        (("prior", "cells"), 33),
        (("prior", "cells"), 2**31),
        (("prior", "cells"), 10**30),
        (("prior", "reference"), "haar"),
        (("prior", "inverse_transform"), "components"),
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
    # Whoever alters a file on purpose sees to its digest too.
    path.write_bytes(sealed(struct.pack("<Q", len(text)) + text + data[8 + size :]))
    with pytest.raises(UserError, match="not a readable KAEM model"):
        kaem.load(path)


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        (lambda m: m.lens.transfer, lambda a: a[:-1], "transfer"),
        (lambda m: m.lens.transfer, jnp.zeros_like, "positive"),
        (lambda m: m.lens.transfer, jnp.negative, "positive"),
        (lambda m: m.lens.mean, lambda a: a[:1], "mean"),
        (lambda m: m.encoder.biases[0], lambda a: a[:1], "biases"),
        (lambda m: m.encoder.head, lambda a: a[:1], "cannot be called"),
        (lambda m: m.encoder.head_bias, lambda a: a[:1], "last layer"),
        (lambda m: m.encoder.mixing, lambda a: a[:1, :1], "mixing"),
        (
            lambda m: m.generator.projection_bias,
            lambda a: a[:1],
            r"projection_bias has shape \(1,\)",
        ),
        (lambda m: m.generator.biases[1], lambda a: a[:1], "biases"),
        (lambda m: m.generator.kernels[0], lambda a: a.astype(jnp.float16), "float16"),
        (lambda m: m.prior.energies.basis.coefficients, lambda a: a[..., :1], "cubic splines"),
        (lambda m: m.prior.energies.basis.grid, lambda a: a[..., ::-1], "ascend"),
        (lambda m: m.prior.energies.basis.grid, jnp.zeros_like, "ascend"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path, where, change, message):
    """Arithmetic would stretch some of them to any shape, and compute something else."""
    path, model = tmp_path / "m.safetensors", Settings.from_dict(SPECTRAL).model((8, 8, 3))
    model.save(path)
    kaem.load(path)
    eqx.tree_at(where, model, replace_fn=change).save(path)
    with pytest.raises(UserError, match=f"not a readable KAEM model.*{message}"):
        kaem.load(path)


def test_a_lens_and_an_encoder_are_for_the_models_own_data():
    model = Settings.from_dict(SPECTRAL).model((8, 8, 3))
    parts = {"encoder": model.encoder, "lens": model.lens}
    with pytest.raises(ValueError, match="the lens is for data of shape"):
        KAEM(model.prior, model.generator, **parts | {"lens": kaem.Lens((4, 4, 3))})
    for other, message in (
        (kaem.layers.Encoder((8, 8, 1), 4, key=jax.random.key(0), widths=(4,)), "cannot be called"),
        (kaem.layers.Encoder((8, 8, 3), 6, key=jax.random.key(0), widths=(4,)), "6 latents"),
    ):
        with pytest.raises(ValueError, match=message):
            KAEM(model.prior, model.generator, **parts | {"encoder": other})
