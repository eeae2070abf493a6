"""Arrays in files, and every way they can be broken."""

import io
import struct
import zipfile

import numpy as np
import pytest

from kaem import UserError
from kaem.cli import main
from kaem.data import arrays, load
from support.image_files import colours


def test_arrays(tmp_path):
    x = np.random.default_rng(0).random((4, 3)).astype(np.float64)
    np.save(tmp_path / "a.npy", x)
    np.testing.assert_allclose(load(str(tmp_path / "a.npy")), x, rtol=1e-6)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(4))
    assert load(str(tmp_path / "a.npz")).dtype == np.float32
    np.savez(tmp_path / "b.npz", left=x, right=x + 1)
    with pytest.raises(UserError, match=r"left, right; say which"):
        load(str(tmp_path / "b.npz"))
    np.testing.assert_allclose(load(str(tmp_path / "b.npz"), "right"), x + 1, rtol=1e-6)
    with pytest.raises(UserError, match="no array 'middle'"):
        load(str(tmp_path / "b.npz"), "middle")


def broken_files():
    x = np.ones((4, 3))
    with_nan = x.copy()
    with_nan[2, 1] = np.nan
    return {
        "nan": (with_nan, "index 2"),
        "beyond float32": (np.array([[1.0, 2.0], [3.0, -1e39]]), "up to 1e\\+39.*example 1; scale"),
        "scalar": (np.array(3.0), "two axes"),
        "empty": (np.zeros((0, 3)), "no data"),
        "text": (np.array([["a", "b"]]), "real numbers"),
        "object": (np.array([[{}]], dtype=object), "Python objects"),
    }


@pytest.mark.parametrize("name", list(broken_files()))
def test_bad_arrays_are_refused(name, tmp_path):
    array, message = broken_files()[name]
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        load(str(tmp_path / "a.npy"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_damaged_files_are_refused(content, tmp_path):
    for suffix in (".npy", ".npz"):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a readable NumPy file"):
            load(str(path))


def claiming(count, version=(1, 0)):
    """A `.npy` file of a few bytes whose header claims `count` numbers."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 3), }}\n".encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + size + header + bytes(24)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_a_header_that_claims_more_than_the_file_has_is_refused(version, tmp_path, capsys):
    (tmp_path / "a.npy").write_bytes(claiming(10**12, version))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", claiming(10**12, version))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(UserError, match=r"header claims .* 1\.2e\+04 GB"):
            load(str(tmp_path / name))
    assert main(["train", str(tmp_path / "a.npz"), "--dry-run"]) == 2
    assert "batch_size" not in capsys.readouterr().err
    (tmp_path / "a.npy").write_bytes(claiming(2, version))
    assert load(str(tmp_path / "a.npy")).shape == (2, 3)


def test_an_array_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 10), np.uint8))
    assert load(str(tmp_path / "a.npz")).shape == (1000, 10)
    monkeypatch.setattr(arrays, "_MAX_BYTES", 5000)
    with pytest.raises(UserError, match=r"unpacked it would take .* expected at most"):
        load(str(tmp_path / "a.npz"))


def test_headers_and_archives_of_no_known_form_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(claiming(2).replace(b"}", b" "))  # NumPy: a TokenError
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.zeros((4, 3)))
    packed = bytearray(buffer.getvalue())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        packed[packed.index(signature) + offset] = 77  # no known compression
    (tmp_path / "a.npz").write_bytes(packed)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(UserError, match="not a readable NumPy file"):
            load(str(tmp_path / name))


def test_splits_of_arrays(tmp_path):
    path = str(tmp_path / "a.npz")
    x = colours()
    np.savez(path, x_train=x[:3], x_test=x[3:], y_train=np.arange(3))
    assert (len(load(path)), len(load(path, split="test")), len(load(path, limit=2))) == (3, 1, 2)
    np.savez(path, x_train=x, y_train=np.arange(4))
    with pytest.raises(UserError, match="no x_test or test_x"):
        load(path, split="test")
    np.savez(path, x=x)  # without splits
    assert len(load(path, split="test")) == 4
    with pytest.raises(UserError, match="training digits only"):
        load("mnist5k", split="test")


def test_shared_rgb_arrays(shared_data):
    for name, size, train, test in (
        ("svhn_20k", 32, 16000, 4000),
        ("cifar10_20k", 32, 16000, 4000),
        ("celeba64_4k", 64, 3500, 500),
    ):
        path = str(shared_data / f"{name}.npz")
        assert load(path, size=size, channels=3).shape == (train, size, size, 3)
        x = load(path, split="test")
        assert (x.shape, x.dtype) == ((test, size, size, 3), np.uint8)
        small = load(path, split="test", size=16, limit=100)
        whole = x[:100].reshape(100, 16, size // 16, 16, size // 16, 3).mean((2, 4))
        assert abs(small - whole).mean() < 6  # Lanczos is sharper than the mean of each block


def test_members_that_are_no_arrays_are_refused(tmp_path):
    path = tmp_path / "bad.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"this is no array")
    with pytest.raises(UserError, match="no array"):
        load(str(path))


def test_a_text_called_npy_is_not_said_to_be_pickled(tmp_path):
    (tmp_path / "a.npy").write_text("1,2,3\n")
    with pytest.raises(UserError, match="it does not begin as one") as refused:
        load(str(tmp_path / "a.npy"))
    assert "pickle" not in str(refused.value)


def test_a_flipped_bit_in_an_archive_of_arrays_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((40, 40), np.uint8))
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="CRC"):
        load(str(path))


def test_arrays_that_pack_well_are_read_and_bombs_are_not(tmp_path, monkeypatch):
    x = (np.random.default_rng(0).random((3000, 32, 32)) < 0.003).astype(np.uint8)
    np.savez_compressed(tmp_path / "x.npz", x=x)
    ratio = x.nbytes / (tmp_path / "x.npz").stat().st_size
    assert 30 < ratio < 500
    monkeypatch.setattr("kaem.data.archives.check_ratio.__defaults__", (2**18,))
    np.testing.assert_array_equal(load(str(tmp_path / "x.npz"))[..., 0], x)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(2**23, np.uint8).reshape(-1, 32, 32))
    with pytest.raises(UserError, match=r"more than 500 times .* np\.save"):
        load(str(tmp_path / "bomb.npz"))


def test_an_array_that_does_not_fit_is_not_called_damaged(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8), np.uint8))

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr("numpy.lib.format.read_array", full)
    with pytest.raises(MemoryError):
        load(str(tmp_path / "x.npy"))
