"""Images in folders: sizes, channels, modes, and what is said of unusual ones."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from kaem import UserError
from kaem.data import decoding, images, load
from support.image_files import colours, encoded, some_images, write_zip


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
    monkeypatch.setattr(decoding, "_MAX_GIGABYTES", 150e-9)
    with pytest.raises(UserError, match=r"data.size=N.*data.limit=N"):
        load(str(tmp_path))
    assert load(str(tmp_path), limit=2).shape == (2, 8, 8, 1)
    assert load(str(tmp_path), size=4).shape == (3, 4, 4, 1)


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


def test_a_pipe_among_images_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "b.png")
    assert load(str(tmp_path)).shape == (1, 4, 4, 1)


def test_no_other_format_hides_behind_a_suffix(tmp_path, monkeypatch):
    """Pillow would start Ghostscript for PostScript, whatever its file is called."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("started"))
    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png cannot be read as an image"):
        load(str(tmp_path))


def test_a_file_too_large_for_an_image_is_not_read(tmp_path):
    with open(tmp_path / "a.png", "wb") as file:
        file.truncate(2**28 + 1)  # which takes no room on the disk, and would in memory
    with pytest.raises(UserError, match="it has 268 MB, expected at most 268"):
        load(str(tmp_path))


def test_few_bytes_do_not_become_many_images(tmp_path, monkeypatch):
    for i in range(4):
        Image.new("L", (1000, 1000)).save(tmp_path / f"{i}.png")
    assert load(str(tmp_path)).shape == (4, 1000, 1000, 1)
    monkeypatch.setattr(images, "_ALWAYS", 100_000)
    with pytest.raises(UserError, match="more than 500 times as much"):
        load(str(tmp_path))
    assert load(str(tmp_path), size=8).shape == (4, 8, 8, 1)
