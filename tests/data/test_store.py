"""Images decoded into the cache are those that are decoded in memory, however it comes about."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kaem import UserError
from kaem.data import load, store, workers
from kaem.files import digest
from support.image_files import colours, encoded, numbered_faces, write_zip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAEM_DATA_CACHE", raising=False)
    return tmp_path / "cache" / "kaem" / "decoded"


def folder_of(path, n=4, size=8, seed=0):
    path.mkdir()
    for i, image in enumerate(colours(n, size, seed)):
        Image.fromarray(image).save(path / f"{i:04}.png")
    return str(path)


def notes(said):
    return [line for line in said if line.startswith("note")]


@pytest.mark.parametrize("number", [1, 3])
def test_a_folder_is_the_same_on_disk_for_any_number_of_processes(tmp_path, monkeypatch, number):
    monkeypatch.setattr(workers, "cores", lambda: number)
    source, said = folder_of(tmp_path / "a", 200), []
    inside = load(source)
    outside = load(source, memory=inside.nbytes - 1, say=said.append)
    assert outside[:].tobytes() == inside.tobytes()
    assert outside.survey.sha256 == digest(inside)
    assert said[0].startswith("decoding 200 images of ")
    said.clear()
    np.testing.assert_array_equal(load(source, memory=0, say=said.append), inside)
    assert said == []  # it was there
    np.testing.assert_array_equal(load(source, memory=0, limit=3), inside[:3])
    Image.fromarray(colours(1, 8, 9)[0]).save(tmp_path / "a" / "0000.png")
    np.testing.assert_array_equal(load(source, memory=0)[0], colours(1, 8, 9)[0])


def test_folders_that_look_alike_are_told_apart(tmp_path, monkeypatch):
    """The same names, sizes and times, as copies and archives have them."""
    monkeypatch.setattr(workers, "cores", lambda: 1)
    for name, shade in (("a", 10), ("b", 20)):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4), shade).save(tmp_path / name / "0.bmp")
        os.utime(tmp_path / name / "0.bmp", (1e9, 1e9))
    shades = [int(load(str(tmp_path / name), memory=0)[0][0, 0, 0]) for name in "ab"]
    assert shades == [10, 20]


def test_zip_files_resized_arrays_and_celeba(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 1)
    files = {f"{i}.png": encoded(Image.fromarray(x)) for i, x in enumerate(colours(5, 9))}
    write_zip(tmp_path / "a.zip", files)
    np.save(tmp_path / "a.npy", colours(5, 9))
    write_zip(tmp_path / "img_align_celeba.zip", numbered_faces([1, 2, 162_770, 182_638]))
    for name, size in (("a.zip", None), ("a.zip", 4), ("a.npy", 4), ("img_align_celeba.zip", 6)):
        source = str(tmp_path / name)
        outside = load(source, size=size, memory=0)
        np.testing.assert_array_equal(outside, load(source, size=size))
        assert not isinstance(outside, np.ndarray)


def spoil_size(folder):
    Image.new("RGB", (6, 5)).save(folder / "0002.png")


def spoil_channels(folder):
    Image.new("L", (8, 8)).save(folder / "0002.png")


def spoil_content(folder):
    for name in ("0001.png", "0003.png"):
        (folder / name).write_bytes(b"no image")


def spoil_all(folder):
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("spoil", [spoil_size, spoil_channels, spoil_content, spoil_all])
def test_bad_images_are_refused_in_the_same_words(tmp_path, cache, spoil):
    source = folder_of(tmp_path / "a")
    spoil(tmp_path / "a")
    with pytest.raises(UserError) as inside:
        load(source)
    with pytest.raises(UserError) as outside:
        load(source, memory=0)
    assert str(inside.value) == str(outside.value)
    assert not list(cache.glob("*.npy")) + list(cache.glob("*.tmp"))


def test_notes_are_the_same_and_are_said_every_time(tmp_path):
    source = folder_of(tmp_path / "a")
    Image.new("CMYK", (8, 8)).save(tmp_path / "a" / "0001.jpg")
    Image.new("RGB", (9, 7)).save(tmp_path / "a" / "0002.png")
    inside, outside, again = [], [], []
    load(source, size=4, say=inside.append)
    load(source, size=4, memory=0, mixed=True)  # which says less
    load(source, size=4, memory=0, say=outside.append)
    load(source, size=4, memory=0, say=again.append)
    assert len(inside) == 2
    assert inside == notes(outside) == again


def test_few_bytes_do_not_become_many_on_disk(tmp_path, monkeypatch):
    from kaem.data import images

    for i in range(4):
        Image.new("L", (1000, 1000)).save(tmp_path / f"{i}.png")
    monkeypatch.setattr(images, "_ALWAYS", 3_100_000)  # here, and not in the other processes
    with pytest.raises(UserError, match="more than 500 times as much"):
        load(str(tmp_path), memory=0)


def test_the_cache_is_bounded_and_what_was_not_used_for_longest_goes(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 1)
    counts = {"a": 1, "b": 2, "c": 1, "large": 9}
    a, b, c, large = (folder_of(tmp_path / name, n, 32, 1) for name, n in counts.items())
    monkeypatch.setenv("KAEM_DATA_CACHE", "11e-6")

    def kept():
        return len(list(cache.glob("*.npy")))

    load(b, memory=0)
    for beside in cache.glob("*.json"):
        os.utime(beside, (time.time() - 100,) * 2)
    first = load(a, memory=0)
    assert kept() == 2
    load(c, memory=0)
    assert kept() == 2
    assert sum(path.stat().st_size for path in cache.iterdir()) < 11_000
    said = []
    load(a, memory=0, say=said.append)
    assert said == []  # b went, which was not used since
    load(b, memory=0, say=said.append)
    assert said[0].startswith("decoding")
    np.testing.assert_array_equal(first, load(a))  # even if it has been removed
    with pytest.raises(UserError, match=r"need .* GB .*KAEM_DATA_CACHE"):
        load(large, memory=0)
    monkeypatch.setenv("KAEM_DATA_CACHE", "much")
    with pytest.raises(UserError, match="a number of GB, got 'much'"):
        load(large, memory=0)


def test_what_cannot_be_written_is_said(tmp_path, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder belongs")
    with pytest.raises(UserError, match=r"could not write .*XDG_CACHE_HOME"):
        load(folder_of(tmp_path / "a"), memory=0)


def test_a_damaged_cache_is_made_again(tmp_path, cache):
    source = folder_of(tmp_path / "a")
    load(source, memory=0)
    (file,) = cache.glob("*.npy")
    for damage in (lambda: os.truncate(file, 200), file.unlink, file.with_suffix(".json").unlink):
        damage()
        np.testing.assert_array_equal(load(source, memory=0), load(source))


READ = """
import sys
from kaem.data import load
from kaem.files import digest
print(digest(load(sys.argv[1], memory=0, say=lambda line: print(line, flush=True))), flush=True)
"""


def reading(source):
    package = str(Path(store.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": package}
    return subprocess.Popen(
        [sys.executable, "-c", READ, source],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.002)


def test_two_processes_that_decode_the_same_do_not_harm_one_another(tmp_path):
    source = folder_of(tmp_path / "a", 300)
    with reading(source) as one, reading(source) as other:
        told = [process.communicate()[0].splitlines() for process in (one, other)]
    assert {lines[-1] for lines in told} == {digest(load(source))}
    assert sum(line.startswith("decoding") for lines in told for line in lines) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stop_while_decoding_leaves_nothing_that_is_believed(tmp_path, cache, stop):
    source = folder_of(tmp_path / "a", 700)
    with reading(source) as process:
        wait_for(lambda: list(cache.glob("*.tmp")))
        own = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: own.read_text().split())
        children = own.read_text().split()
        process.send_signal(stop)
        process.communicate()
    assert process.returncode != 0
    wait_for(lambda: not any(Path(f"/proc/{child}/fd").exists() for child in children))
    assert not list(cache.glob("*.npy"))
    if stop == signal.SIGINT:
        assert not list(cache.glob("*.tmp"))
    np.testing.assert_array_equal(load(source, memory=0), load(source))
    assert not list(cache.glob("*.tmp"))
