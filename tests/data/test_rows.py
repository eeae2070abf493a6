"""Examples on disk are indexed like the array that they would be in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaem import UserError
from kaem.data import load, rows
from kaem.files import blocks, digest

COUNT = 37
X = np.random.default_rng(0).integers(0, 256, (COUNT, 3, 2), np.uint8)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "a.npy"
    np.save(path, X)
    return load(str(path), memory=0).reshape(X.shape)


places = st.integers(-COUNT, COUNT - 1)
bounds = st.none() | st.integers(-2 * COUNT, 2 * COUNT)
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(-5, 5).filter(bool))
lists = st.lists(places, max_size=30).map(lambda found: np.array(found, int))
tables = st.lists(st.lists(places, min_size=4, max_size=4), min_size=1, max_size=6).map(np.array)


@given(places | slices | lists | tables)
@settings(max_examples=200, deadline=None)
def test_rows_are_indexed_like_an_array(on_disk, index):
    read = on_disk[index]
    np.testing.assert_array_equal(read, X[index])
    assert read.dtype == X.dtype


def test_rows_say_what_they_are(on_disk):
    assert (on_disk.shape, on_disk.ndim, on_disk.nbytes, len(on_disk)) == (X.shape, 3, X.nbytes, 37)
    np.testing.assert_array_equal(np.asarray(on_disk), X)
    np.testing.assert_array_equal(on_disk.reshape(COUNT, 6), X.reshape(COUNT, 6))
    assert digest(on_disk) == digest(X) == on_disk.survey.sha256
    assert (on_disk.survey.low, on_disk.survey.high) == (X.min(), X.max())
    assert [len(block) for block in blocks(on_disk, 60)] == [10, 10, 10, 7]
    for wrong in (COUNT, [0, -COUNT - 1]):
        with pytest.raises(IndexError, match="no example"):
            on_disk[wrong]
    for wrong in (0.5, (0, 1), [True] * COUNT):
        with pytest.raises(IndexError, match="by integers"):
            on_disk[wrong]
    with pytest.raises(ValueError, match="cannot reshape"):
        on_disk.reshape(COUNT * 6)


@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f4", "f8", "i8", "?", "f2"])
@pytest.mark.parametrize("order", "CF")
def test_arrays_on_disk_are_what_they_are_in_memory(dtype, order, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a.npy"
    x = np.random.default_rng(1).integers(0, 200, (9, 4, 5)).astype(dtype)
    np.save(path, np.asarray(x, order=order))
    inside, outside = load(str(path)), load(str(path), memory=0)
    assert isinstance(outside, rows.Rows)
    np.testing.assert_array_equal(inside, np.asarray(outside))
    assert (inside.dtype, digest(inside)) == (outside.dtype, outside.survey.sha256)
    few = load(str(path), memory=0, limit=4)
    np.testing.assert_array_equal(few, inside[:4])
    assert few.survey.sha256 == digest(inside[:4])
    assert isinstance(load(str(path), memory=inside.nbytes), np.ndarray)


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 0.0]]),
        np.array([[1.0, 2.0], [3.0, -1e39]]),
        np.zeros((0, 3), np.float32),
        np.zeros(5, np.float32),
        np.array([["a", "b"]]),
        np.array([[1j, 2]]),
    ],
    ids=["nan", "beyond float32", "empty", "one axis", "text", "complex"],
)
def test_what_is_wrong_is_said_in_the_same_words(x, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = str(tmp_path / "a.npy")
    np.save(path, x)
    with pytest.raises(UserError) as inside:
        load(path)
    with pytest.raises(UserError) as outside:
        load(path, memory=0)
    assert str(inside.value) == str(outside.value)


def test_a_file_that_claims_more_than_it_has_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="but the file holds"):
        load(str(path), memory=0)


def test_a_file_that_is_cut_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, X)
    read = load(str(path), memory=0)
    with open(path, "rb+") as file:
        file.truncate(200)
    with pytest.raises(UserError, match="changed while it was read"):
        read[:]


def test_what_is_known_of_a_file_is_kept_until_it_changes(tmp_path, monkeypatch):
    """So that a second training does not read everything before it begins."""
    path = tmp_path / "a.npy"
    np.save(path, X)
    first = load(str(path), memory=0).survey
    monkeypatch.setattr(rows, "blocks", lambda _: pytest.fail("it was read again"))
    assert load(str(path), memory=0).survey == first
    monkeypatch.undo()
    np.save(path, X[::-1])
    assert load(str(path), memory=0).survey.sha256 == digest(X[::-1])
