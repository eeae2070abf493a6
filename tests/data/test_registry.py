"""Registered data sets: found, checked, fetched, or named as broken."""

import gzip
import hashlib
import http.server
import threading
from dataclasses import replace

import numpy as np
import pytest

from kaem import UserError
from kaem.data import DATASETS, fetch, find, load, registry
from support.image_files import idx, some_images


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A registered dataset of six images in `$KAEM_DATA/small`."""
    content = gzip.compress(idx(some_images()))
    folder = tmp_path / "data" / "small"
    folder.mkdir(parents=True)
    names = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
    files = dict.fromkeys(names, hashlib.sha256(content).hexdigest())
    for name in files:
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
    path.write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
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
