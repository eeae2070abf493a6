"""Canonical archives: MATLAB files, CIFAR-10, zips and CelebA."""

import hashlib
import struct
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from kaem import UserError
from kaem.cli import main
from kaem.data import DATASETS, fetch, find, images, load, registry
from support.image_files import (
    cifar_members,
    colours,
    encoded,
    numbered_faces,
    write_mat,
    write_tar,
    write_zip,
)


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


def test_matlab_files_of_both_byte_orders(tmp_path):
    """Written by hand, as the format's description has it."""
    x = np.arange(2 * 3 * 1 * 4, dtype=np.uint8).reshape(2, 3, 1, 4)
    for order, mark in (("<", b"IM"), (">", b"MI")):

        def element(kind, data, order=order):
            return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)

        small = struct.pack(f"{order}I", 1 << 16 | 1) + b"X\0\0\0"  # a name that fits into its tag
        array = element(6, struct.pack(f"{order}II", 9, 0)) + element(
            5, struct.pack(f"{order}4i", *x.shape)
        )
        array += small + element(2, x.tobytes(order="F"))
        head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + mark
        (tmp_path / "a.mat").write_bytes(head + element(14, array))
        np.testing.assert_array_equal(load(str(tmp_path / "a.mat")), x.transpose(3, 0, 1, 2))


@pytest.mark.parametrize("packed", [True, False])
def test_no_flipped_bit_of_a_matlab_file_does_more_than_change_pixels(tmp_path, packed):
    path, x, rng = tmp_path / "a.mat", colours(), np.random.default_rng(0)
    savemat(path, {"y": np.arange(4.0), "X": x.transpose(1, 2, 3, 0)}, do_compression=packed)
    np.testing.assert_array_equal(load(str(path)), x)
    good, read = path.read_bytes(), 0
    for place in (*range(116, 400), *rng.integers(400, len(good), 100)):
        damaged = bytearray(good)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            found = load(str(path))
        except UserError:
            continue
        read += 1
        assert found.shape[0] * np.prod(found.shape[1:]) == x.size
        assert np.mean(found.reshape(-1) == x.reshape(-1)) > 0.9 or found.shape != x.shape
    assert read < (150 if packed else 384)  # what is packed has a checksum


def test_a_matlab_file_that_claims_more_than_it_has_is_refused(tmp_path):
    path = tmp_path / "a.mat"
    savemat(path, {"X": colours().transpose(1, 2, 3, 0)})
    data = bytearray(path.read_bytes())
    place = data.index(struct.pack("<4i", *colours().transpose(1, 2, 3, 0).shape))
    data[place : place + 4] = struct.pack("<i", 2**31 - 1)
    path.write_bytes(data)
    with pytest.raises(UserError, match="for an array of shape"):
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
    monkeypatch.setattr(images, "_MAX_FILE", 100)
    with pytest.raises(UserError, match="unpacked it would take"):
        load(str(path))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="not a readable zip file"):
        load(str(path))
    write_zip(path, {"a.txt": b""})
    with pytest.raises(UserError, match="holds no images"):
        load(str(path))


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
    entry = replace(DATASETS["celeba"], files={path.name: digest}, unpacked=2)
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
        files = {
            file: hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
            for file, path in find(name).items()
        }
        monkeypatch.setitem(registry.DATASETS, name, replace(DATASETS[name], files=files))
    np.testing.assert_array_equal(load("svhn", limit=2), x[:2])
    assert load("cifar10").shape == (10, 32, 32, 3)
    assert load("cifar10", split="test")[0, 0, 0].tolist() == [6, 100, 200]
    with pytest.raises(UserError, match=r"test_32x32\.mat was looked for"):
        load("svhn", split="test")
