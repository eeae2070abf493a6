"""Readers and the registry: real formats, and every way they can be broken."""

import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from kaem import UserError
from kaem.cli import main
from kaem.data import DATASETS, arrays, fetch, find, images, load, registry


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


def test_images_of_mixed_sizes_are_refused_or_resized_with_a_note(tmp_path):
    Image.new("L", (5, 5)).save(tmp_path / "a.png")
    Image.new("L", (6, 5)).save(tmp_path / "b.png")
    source = str(tmp_path)
    message = r"b\.png is 6 x 5 pixels, but .*a\.png is 5 x 5"
    with pytest.raises(UserError, match=message) as refused:
        load(source)
    assert "`--set data.size=N`" in str(refused.value)
    with pytest.raises(UserError, match=message):
        load(source, mixed=True)
    said = []
    assert load(source, size=4, say=said.append).shape == (2, 4, 4, 1)
    assert said == [
        f"note: 1 of 2 images of {source} are not 5 x 5 pixels like a.png: all are cropped to "
        "squares and resized to 4 x 4"
    ]
    assert load(source, size=4, mixed=True, say=pytest.fail).shape == (2, 4, 4, 1)
    assert load(source, limit=1).shape == (1, 5, 5, 1)


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
    monkeypatch.setattr(arrays, "_MAX_GIGABYTES", 5e-6)
    with pytest.raises(UserError, match=r"unpacked, x has .* expected at most"):
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


def encoded(image, kind="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def colours(n=4, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), np.uint8)


def write_mat(path, x, **others):
    """As MATLAB has it: examples along the last axis, compressed."""
    savemat(path, {"X": x.transpose(1, 2, 3, 0), **others}, do_compression=True)


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar_members(count=2):
    """Batch k holds labels k and images whose red is k, green 100 + row, blue 200 + column / 2."""
    row, column = np.mgrid[:32, :32]
    members = {}
    for k in (2, 5, 1, 4, 3, 6):  # in no order, as in the canonical archive
        planes = np.stack([np.full((32, 32), k), 100 + row, 200 + column // 2]).astype(np.uint8)
        name = f"data_batch_{k}.bin" if k < 6 else "test_batch.bin"
        members[name] = (bytes([k]) + planes.tobytes()) * count
    return members


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def numbered_faces(numbers):
    """CelebA's layout, 178 x 218: a centre of 148 x 148 with its own grey, in a white frame."""
    files = {}
    for i, number in enumerate(numbers):
        image = Image.new("RGB", (178, 218), "white")
        image.paste((20 * i,) * 3, (15, 35, 163, 183))
        files[f"img_align_celeba/{number:06}.jpg"] = encoded(image, "PNG")  # exact, unlike JPEG
    return files


def test_matlab_files(tmp_path):
    x = colours()
    write_mat(tmp_path / "train_32x32.mat", x, y=np.arange(4))
    write_mat(tmp_path / "test_32x32.mat", x[::-1])
    np.testing.assert_array_equal(load(str(tmp_path)), x)
    np.testing.assert_array_equal(load(str(tmp_path), split="test"), x[::-1])
    np.testing.assert_array_equal(load(str(tmp_path / "train_32x32.mat"), limit=3), x[:3])
    with pytest.raises(UserError, match="expected uint8 images"):
        load(str(tmp_path / "train_32x32.mat"), "y")
    with pytest.raises(UserError, match="no variable 'Z'; it holds X, y"):
        load(str(tmp_path / "train_32x32.mat"), "Z")
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"has train_32x32\.mat but no test_32x32\.mat"):
        load(str(tmp_path), split="test")


def test_damaged_matlab_files_are_refused(tmp_path):
    path = tmp_path / "a.mat"
    write_mat(path, colours())
    good = path.read_bytes()
    damaged = [b"", good[:100], good[:-200], b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM"]
    damaged += [good[:i] + bytes([good[i] ^ 255]) + good[i + 1 :] for i in (126, 130, 137, 500)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a readable MATLAB 5 file"):
            load(str(path))


def test_cifar_archives(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, cifar_members() | {"readme.html": b"ignored"})
    x = load(str(path))
    assert (x.shape, x.dtype) == ((10, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(x[:, 0, 0, 0], np.repeat(range(1, 6), 2))  # batches in order
    assert x[3, 7, 20].tolist() == [2, 107, 210]
    np.testing.assert_array_equal(load(str(tmp_path), limit=3), x[:3])
    test = load(str(tmp_path), split="test")
    assert (len(test), test[1, 31, 0].tolist()) == (2, [6, 131, 200])


def test_damaged_cifar_archives_are_refused(tmp_path):
    path = tmp_path / "cifar.tar.gz"
    write_tar(path, cifar_members())
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="could not be unpacked"):
            load(str(path))
    members = cifar_members()
    del members["data_batch_4.bin"]
    write_tar(path, members)
    with pytest.raises(UserError, match=r"lacks data_batch_4\.bin"):
        load(str(path))
    write_tar(path, cifar_members() | {"data_batch_2.bin": b"12345"})
    with pytest.raises(UserError, match=r"data_batch_2\.bin of .* has 5 bytes"):
        load(str(path))


def test_zip_files_of_images(tmp_path, monkeypatch):
    x = colours(3, 8)
    files = {f"photos/{i}.png": encoded(Image.fromarray(x[i])) for i in (2, 0, 1)}
    path = tmp_path / "photos.zip"
    write_zip(path, files | {"photos/": b"", "notes.txt": b"", "__MACOSX/photos/._0.png": b"Mac"})
    np.testing.assert_array_equal(load(str(path)), x)
    np.testing.assert_array_equal(load(str(path), limit=2), x[:2])
    write_zip(path, files | {"photos/1.png": files["photos/1.png"][:60]})
    with pytest.raises(UserError, match=r"photos/1\.png cannot be read .* 1 files before"):
        load(str(path))
    monkeypatch.setattr(images, "_MAX_MEMBER_BYTES", 100)
    with pytest.raises(UserError, match="unpacked it would take"):
        load(str(path))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="not a readable zip file"):
        load(str(path))
    write_zip(path, {"a.txt": b""})
    with pytest.raises(UserError, match="holds no images"):
        load(str(path))


def test_jpegs_in_a_folder_agree_with_the_same_in_a_zip(tmp_path):
    folder = tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    names = ["b.jpg", "sub/a.jpg", "c.JPG"]
    files = {n: encoded(Image.fromarray(colours(1, 16, i)[0]), "JPEG") for i, n in enumerate(names)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_zip(tmp_path / "a.zip", files)
    x = load(str(folder))
    np.testing.assert_array_equal(x, load(str(tmp_path / "a.zip")))
    for i, name in enumerate(["b.jpg", "c.JPG", "sub/a.jpg"]):
        np.testing.assert_array_equal(x[i], np.asarray(Image.open(io.BytesIO(files[name]))))


def test_celeba_takes_its_own_partition_and_the_centre(tmp_path):
    files = numbered_faces([1, 2, 162770, 162771, 182637, 182638, 202599])
    write_zip(tmp_path / "img_align_celeba.zip", files)
    train = load(str(tmp_path))
    assert train.shape == (3, 64, 64, 3)
    for image, grey in zip(train, (0, 20, 40), strict=True):  # nothing of the white frame
        assert (image == grey).all()
    test = load(str(tmp_path / "img_align_celeba.zip"), split="test")
    np.testing.assert_array_equal(test[:, 0, 0, 0], [100, 120])
    assert load(str(tmp_path), size=32, limit=2).shape == (2, 32, 32, 3)

    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(tmp_path / "img_align_celeba.zip") as archive:
        archive.extractall(unpacked)
    for place in (unpacked, unpacked / "img_align_celeba"):
        np.testing.assert_array_equal(load(str(place)), train)
    write_zip(tmp_path / "img_align_celeba.zip", {"cat.png": encoded(Image.new("RGB", (8, 8)))})
    with pytest.raises(UserError, match=r"none of CelebA's train images, 000001\.jpg to 162770"):
        load(str(tmp_path))


def test_celeba_by_name_is_checked_or_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAEM_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"Google Drive form.*Put it into") as refused:
        fetch("celeba")
    assert str(tmp_path / "celeba") in str(refused.value)
    with pytest.raises(UserError, match="says how to get it by hand"):
        load("celeba")
    assert main(["data", "list"]) == 0
    assert "`kaem data fetch celeba` says how to get it by hand" in capsys.readouterr().out

    path = tmp_path / "celeba" / "img_align_celeba.zip"
    path.parent.mkdir()
    write_zip(path, numbered_faces([1, 2]))
    for attempt in (load, fetch):
        with pytest.raises(UserError, match="SHA-256"):
            attempt("celeba")
    assert main(["data", "check"]) == 2  # present, but bad
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    entry = replace(DATASETS["celeba"], files=((path.name, digest),), unpacked=2)
    monkeypatch.setitem(registry.DATASETS, "celeba", entry)
    assert load("celeba").shape == (2, 64, 64, 3)
    assert fetch("celeba") == [path]
    capsys.readouterr()
    assert main(["data", "check", "celeba"]) == 0
    assert "the first 2 of 162770 examples of shape (64, 64, 3)" in capsys.readouterr().out

    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.parent)
    path.unlink()
    assert load("celeba").shape == (2, 64, 64, 3)
    (path.with_suffix("") / "000002.jpg").unlink()
    with pytest.raises(UserError, match=r"holds 1 images, but .* has 2"):
        load("celeba")
    assert len(load(str(path.with_suffix("")))) == 1


def test_registered_rgb_files_are_read_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("KAEM_DATA", str(tmp_path))
    for name in ("svhn", "cifar10"):
        (tmp_path / name).mkdir()
    x = colours()
    write_mat(tmp_path / "svhn" / "train_32x32.mat", x)
    write_tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", cifar_members())
    for name in ("svhn", "cifar10"):
        with pytest.raises(UserError, match="SHA-256"):
            load(name)
        files = tuple(
            (file, hashlib.sha256(path.read_bytes()).hexdigest() if path else "")
            for file, path in find(name).items()
        )
        monkeypatch.setitem(registry.DATASETS, name, replace(DATASETS[name], files=files))
    np.testing.assert_array_equal(load("svhn", limit=2), x[:2])
    assert load("cifar10").shape == (10, 32, 32, 3)
    assert load("cifar10", split="test")[0, 0, 0].tolist() == [6, 100, 200]
    with pytest.raises(UserError, match=r"test_32x32\.mat was looked for"):
        load("svhn", split="test")


def test_images_are_cropped_to_their_centre_and_resized(tmp_path):
    # A constant central square survives exactly; what was left and right of it is gone.
    image = Image.new("RGB", (40, 20), "white")
    image.paste((10, 20, 30), (10, 0, 30, 20))
    image.save(tmp_path / "a.png")
    for size in (5, 20, 33):
        x = load(str(tmp_path), size=size)
        assert x.shape == (1, size, size, 3)
        assert (x == [10, 20, 30]).all()
    assert load(str(tmp_path)).shape == (1, 20, 40, 3)


def test_resizing_averages(tmp_path):
    # Stripes finer than the new pixels become grey instead of aliasing; a gradient keeps its mean.
    stripes = np.zeros((60, 60), np.uint8)
    stripes[:, ::2] = 200
    gradient = np.tile(np.linspace(0, 240, 60).astype(np.uint8), (60, 1))
    np.save(tmp_path / "a.npy", np.stack([stripes, gradient, gradient.T]))
    x = load(str(tmp_path / "a.npy"), size=12).astype(float)
    assert np.ptp(x[0, :, 2:-2]) <= 2
    assert abs(x[0].mean() - 100) < 1
    assert abs(x[1].mean() - gradient.mean()) < 1
    np.testing.assert_array_equal(x[1], x[2].transpose(1, 0, 2))
    centres = gradient[0].reshape(12, 5).mean(1)  # of the five pixels that each new one covers
    np.testing.assert_allclose(x[1, 6, 2:-2, 0], centres[2:-2], atol=1.5)
    # Arrays and files come out alike.
    (tmp_path / "files").mkdir()
    for i, image in enumerate((stripes, gradient)):
        Image.fromarray(image).save(tmp_path / "files" / f"{i}.png")
    np.testing.assert_array_equal(load(str(tmp_path / "files"), size=12), x[:2])


def test_only_images_are_resized(tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, np.zeros((3, 6, 6), np.float32))
    assert load(path, size=6, channels=1).shape == (3, 6, 6, 1)
    with pytest.raises(UserError, match="only uint8 images"):
        load(path, size=5)
    np.save(path, np.zeros((3, 6), np.uint8))
    with pytest.raises(UserError, match="only uint8 images"):
        load(path, size=6)
    with pytest.raises(UserError, match="no images"):
        load(path, channels=1)
    for bad in ({"size": 0}, {"limit": 0}, {"channels": 2}, {"split": "valid"}):
        with pytest.raises(UserError, match="must be"):
            load(path, **bad)


def test_channels_are_never_guessed(tmp_path):
    grey, mixed = tmp_path / "grey", tmp_path / "mixed"
    for folder in (grey, mixed):
        folder.mkdir()
        Image.new("L", (5, 5)).save(folder / "a.png")
    Image.new("RGB", (5, 5)).save(mixed / "b.png")
    assert load(str(grey), channels=1).shape == (1, 5, 5, 1)
    with pytest.raises(UserError, match=r"holds grey images, but data\.channels=3") as refused:
        load(str(grey), channels=3)
    assert "`--set data.channels=1`" in str(refused.value)
    assert "convert the images to RGB" in str(refused.value)
    with pytest.raises(UserError, match=r"b\.png is RGB, but .*a\.png is grey"):
        load(str(mixed))
    np.save(tmp_path / "a.npy", colours())
    assert load(str(tmp_path / "a.npy"), channels=3).shape == (4, 32, 32, 3)
    with pytest.raises(UserError, match=r"holds RGB images, but data\.channels=1"):
        load(str(tmp_path / "a.npy"), channels=1)
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 4, 5), np.uint8))
    with pytest.raises(UserError, match="images of 5 channels"):
        load(str(tmp_path / "a.npy"), channels=3)


def test_image_modes(tmp_path):
    path = tmp_path / "a.png"
    deep = (np.arange(16, dtype=np.uint16) * 4096).reshape(4, 4)
    Image.fromarray(deep).save(path)  # 16 bits: scaled, not clipped
    np.testing.assert_array_equal(load(str(tmp_path))[0, ..., 0], deep / 256)
    Image.new("RGB", (4, 4), (1, 2, 3)).quantize().save(path)
    assert (load(str(tmp_path)) == [1, 2, 3]).all()
    Image.new("1", (4, 4), 1).save(path)
    assert (load(str(tmp_path)) == 255).all()
    path.unlink()
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(UserError, match="32 bits and no known range"):
        load(str(tmp_path))


def deep_png(pixels):
    """An RGB image of 16 bits a channel, which Pillow cannot write."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_what_is_done_to_unusual_images_is_said(tmp_path):
    """And done right: 16 bits are scaled rather than clipped, whatever the format."""
    said = []
    grey, colour = tmp_path / "grey", tmp_path / "colour"
    grey.mkdir()
    colour.mkdir()
    deep = (np.arange(16, dtype=np.uint16) * 4096 + 7).reshape(4, 4)
    Image.fromarray(deep).save(grey / "a.png")
    Image.fromarray(deep).save(grey / "b.tif")
    Image.fromarray(deep.astype(">u2")).save(grey / "c.tif")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(grey / "d.bmp")
    np.testing.assert_array_equal(load(str(grey), say=said.append)[:3, ..., 0], [deep // 256] * 3)
    assert said == [f"note: 3 of 4 images of {grey} have 16 bits a channel: they are scaled to 8"]
    said.clear()
    rgb = np.stack([deep, deep.T, deep[::-1]], axis=-1)
    (colour / "a.png").write_bytes(deep_png(rgb))
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(colour / "b.tif")
    frames = [Image.new("RGB", (4, 4), shade) for shade in ("blue", "lime")]
    frames[0].save(colour / "c.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (4, 4)).save(colour / "d.png")
    x = load(str(colour), say=said.append)
    np.testing.assert_array_equal(x[0], rgb // 256)
    assert (x[1] == [255, 0, 0]).all()
    assert (x[2] == [0, 0, 255]).all()
    assert [line.partition(" images of ")[0] for line in said] == ["note: 1 of 4"] * 3
    for line, words in zip(said, ("CMYK", "16 bits", "several frames"), strict=True):
        assert words in line


def test_too_many_large_images_are_refused(tmp_path, monkeypatch):
    for i in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{i}.png")
    monkeypatch.setattr(images, "_MAX_GIGABYTES", 150e-9)
    with pytest.raises(UserError, match=r"data.size=N.*data.limit=N"):
        load(str(tmp_path))
    assert load(str(tmp_path), limit=2).shape == (2, 8, 8, 1)
    assert load(str(tmp_path), size=4).shape == (3, 4, 4, 1)


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


def test_photographs_are_turned_upright_and_it_is_said(tmp_path):
    """A camera held on its side writes the pixels as they lie, and says so in EXIF."""
    upright = np.zeros((6, 4, 3), np.uint8)
    upright[:2] = 255
    lying = Image.fromarray(np.rot90(upright).copy())
    exif = Image.Exif()
    exif[0x0112] = 6
    lying.save(tmp_path / "a.png", exif=exif)
    Image.fromarray(upright).save(tmp_path / "b.png")
    notes = []
    x = load(str(tmp_path), say=notes.append)
    np.testing.assert_array_equal(x[0], upright)
    np.testing.assert_array_equal(x[1], upright)
    assert "1 of 2" in notes[0]
    assert "upright" in notes[0]


def test_members_that_are_no_arrays_are_refused(tmp_path):
    path = tmp_path / "bad.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"this is no array")
    with pytest.raises(UserError, match="no array"):
        load(str(path))


def test_a_pipe_among_images_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "b.png")
    assert load(str(tmp_path)).shape == (1, 4, 4, 1)
