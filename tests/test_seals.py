"""Digests of files: every byte of a checkpoint and of a model counts, and older files have none."""

import json
import struct
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import kaem
from kaem import UserError
from kaem.files import check_seal, sealed, write_atomically
from kaem.loading import read, read_config
from kaem.training import checkpoint
from support.training import fresh, images, tiny


def damages(data, number):
    """Yield so many altered copies of a file, of which one is cut for each that has another byte."""
    rng = np.random.default_rng(0)
    size = 8 + struct.unpack("<Q", data[:8])[0]
    for i in range(number // 2):
        # Half of them in the header, which is a small part of the file.
        place = int(rng.integers(size) if i % 2 else rng.integers(len(data)))
        altered = bytearray(data)
        altered[place] ^= int(rng.integers(1, 256))
        yield bytes(altered)
        yield data[: int(rng.integers(len(data)))]


@pytest.mark.parametrize("number", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_altered_byte_of_a_checkpoint_is_noticed(tmp_path, number):
    settings, x = tiny(), images()
    state = fresh(settings, x)
    for step in (10, 20):
        state = replace(state, step=step, sums={"loss": step / 3}, logged=step - 3, rates=0.5)
        checkpoint.write(tmp_path, state, keep=2, run="this")
    file = tmp_path / "00000020" / "state.safetensors"
    good = file.read_bytes()
    for altered in damages(good, number):
        file.write_bytes(altered)
        restored, (note,) = checkpoint.read(tmp_path, state, "this")
        assert restored.step == 10
        assert str(file) in note
    file.write_bytes(good)
    restored, notes = checkpoint.read(tmp_path, fresh(settings, x), "this")
    assert (restored.step, notes) == (20, [])
    assert (restored.sums, restored.logged, restored.rates) == ({"loss": 20 / 3}, 17, 0.5)


def model():
    key = jax.random.key(0)
    prior = kaem.UnivariatePrior(2, key=key)
    return kaem.KAEM(prior, kaem.KAN(5, (3,), depth=1, key=key), noise=0.3)


def test_every_altered_byte_of_a_model_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    model().save(path)
    good = path.read_bytes()
    for altered in damages(good, 200):
        path.write_bytes(altered)
        with pytest.raises(UserError, match=r"is not a readable KAEM model|cannot be read"):
            read(path)
        with pytest.raises(UserError, match="has no readable header"):
            read_config(path)
    flipped = bytearray(good)
    flipped[-2] ^= 1  # of a number, which stays one
    path.write_bytes(bytes(flipped))
    with pytest.raises(UserError, match=r"its content is not what was written.*Copy it again"):
        kaem.load(path)


def test_the_digest_says_twice_that_it_is_there(tmp_path):
    path = tmp_path / "model.safetensors"
    model().save(path)
    for name in (b'"digest"', b'"digested"'):
        altered = path.with_name("altered.safetensors")
        altered.write_bytes(path.read_bytes().replace(name, b'"' + b"x" + name[2:], 1))
        with pytest.raises(ValueError, match="not what was written"):
            check_seal(altered)


def test_files_of_older_versions_have_no_digest_and_open(tmp_path):
    path = tmp_path / "model.safetensors"
    model().save(path)
    with safe_open(path, framework="numpy") as file:
        header = {n: v for n, v in file.metadata().items() if not n.startswith("digest")}
    save_file(load_file(path), path, header)
    check_seal(path)
    assert kaem.load(path).data_shape == (3,)
    again = sealed(path.read_bytes())
    size = struct.unpack("<Q", again[:8])[0]
    assert len(json.loads(again[8 : 8 + size])["__metadata__"]["digest"]) == 64
    path.write_bytes(again)
    check_seal(path)


def test_a_write_that_is_interrupted_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
