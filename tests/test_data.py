"""Readers and the registry: real formats, and every way they can be broken."""

import gzip
import hashlib
import http.server
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kaem import UserError
from kaem.data import DATASETS, fetch, find, load, registry


def idx(images):
    return (
        b"\0\0\x08"
        + bytes([images.ndim])
        + struct.pack(f">{images.ndim}I", *images.shape)
        + images.tobytes()
    )


def some_images(n=6):
    return np.random.default_rng(0).integers(0, 256, (n, 28, 28), np.uint8)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A registered dataset of six images in `$KAEM_DATA/small`."""
    content = gzip.compress(idx(some_images()))
    folder = tmp_path / "data" / "small"
    folder.mkdir(parents=True)
    files = (
        ("train-images-idx3-ubyte.gz", hashlib.sha256(content).hexdigest()),
        ("t10k-images-idx3-ubyte.gz", hashlib.sha256(content).hexdigest()),
    )
    for name, _ in files:
        (folder / name).write_bytes(content)
    entry = replace(DATASETS["mnist"], folder="small", files=files, mirrors=())
    monkeypatch.setitem(registry.DATASETS, "small", entry)
    monkeypatch.setenv("KAEM_DATA", str(tmp_path / "data"))
    return folder


def test_embedded_digits():
    x = load("mnist5k")
    assert (x.shape, x.dtype) == ((5000, 28, 28, 1), np.uint8)
    assert 25 < x.mean() < 40  # MNIST's mean is 33.3
    assert all(path is not None for path in find("mnist5k").values())


def test_registered_files_are_read_and_checked(small):
    np.testing.assert_array_equal(load("small")[..., 0], some_images())
    path = small / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="SHA-256"):
        load("small")
    path.unlink()
    with pytest.raises(UserError, match="kaem data fetch small"):
        load("small")


def test_canonical_files_agree_with_their_checksums(shared_data, monkeypatch):
    monkeypatch.setenv("KAEM_DATA", str(shared_data))
    for name in ("mnist", "fashion-mnist"):
        x = load(name)
        assert x.shape == (60000, 28, 28, 1)
        assert load(name, split="test").shape == (10000, 28, 28, 1)
    # The embedded digits are training digits.
    digits = {image.tobytes() for image in load("mnist")}
    assert all(image.tobytes() in digits for image in load("mnist5k")[:200])


def test_fetch_downloads_checks_and_survives_bad_mirrors(small, tmp_path, monkeypatch):
    content = (small / "train-images-idx3-ubyte.gz").read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            good = self.path.startswith("/good/")
            self.send_response(200 if good or "bad" in self.path else 404)
            self.end_headers()
            self.wfile.write(content if good else b"something else")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("KAEM_DATA", str(tmp_path / "new"))
        entry = registry.DATASETS["small"]
        monkeypatch.setitem(
            registry.DATASETS, "small", replace(entry, mirrors=(f"{base}/bad/", f"{base}/good/"))
        )
        paths = fetch("small")
        assert [p.parent.name for p in paths] == ["small", "small"]
        np.testing.assert_array_equal(load("small")[..., 0], some_images())
        monkeypatch.setenv("KAEM_DATA", str(tmp_path / "other"))
        monkeypatch.setitem(registry.DATASETS, "small", replace(entry, mirrors=(f"{base}/bad/",)))
        with pytest.raises(UserError, match="could not be fetched"):
            fetch("small")
        assert not [p for p in (tmp_path / "other").rglob("*") if p.is_file()]
    finally:
        server.shutdown()
        server.server_close()


def test_folders_of_images(tmp_path):
    for i, image in enumerate(some_images(3)):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    np.testing.assert_array_equal(load(str(tmp_path))[..., 0], some_images(3))
    (tmp_path / "note.txt").write_text("ignored")
    assert len(load(str(tmp_path))) == 3
    colour = tmp_path / "colour"
    colour.mkdir()
    Image.new("RGBA", (5, 4)).save(colour / "a.png")
    assert load(str(colour)).shape == (1, 4, 5, 3)


def test_a_broken_image_is_named(tmp_path):
    for i, image in enumerate(some_images(3)):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:100])
    with pytest.raises(UserError, match=r"1\.png cannot be read"):
        load(str(tmp_path))


def test_images_of_mixed_sizes_are_refused(tmp_path):
    Image.new("L", (5, 5)).save(tmp_path / "a.png")
    Image.new("L", (6, 5)).save(tmp_path / "b.png")
    with pytest.raises(UserError, match="one size"):
        load(str(tmp_path))


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


def test_truncated_gz_is_named(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(some_images()))[:-20])
    with pytest.raises(UserError, match="truncated"):
        load(str(tmp_path))
    path.write_bytes(gzip.compress(idx(some_images())[:-5]))
    with pytest.raises(UserError, match="should hold"):
        load(str(tmp_path))
    path.write_bytes(gzip.compress(b"hello"))
    with pytest.raises(UserError, match="not an idx file"):
        load(str(tmp_path))


def test_unknown_names_and_formats(tmp_path):
    with pytest.raises(UserError, match="neither a registered name"):
        load("mnits")
    (tmp_path / "a.xyz").write_text("")
    with pytest.raises(UserError, match="format"):
        load(str(tmp_path / "a.xyz"))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        load(str(tmp_path / "none"))
