"""Parquet files against the arrays that pyarrow wrote into them."""

import sys

import numpy as np
import pytest
from PIL import Image

from kaem import UserError
from kaem.data import load, workers
from support.image_files import colours, encoded

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(workers, "cores", lambda: 1)


def both(path, *arguments, **options):
    """What is read into memory, which is the same as what is read onto disk."""
    inside = load(str(path), *arguments, **options)
    outside = load(str(path), *arguments, **options, memory=0)
    assert not isinstance(outside, np.ndarray)
    assert outside.dtype == inside.dtype
    np.testing.assert_array_equal(np.asarray(outside), inside)
    return inside


def test_columns_of_numbers_are_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=50), "b": rng.integers(0, 9, 50), "c": ["text"] * 50}
    columns["d"] = columns["a"] > 0
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", row_group_size=7)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    again = np.stack([columns[name].astype(np.float32) for name in "abd"], axis=1)
    np.testing.assert_array_equal(both(tmp_path / "a.parquet"), again)
    np.testing.assert_array_equal(both(tmp_path / "a.parquet", limit=11), again[:11])
    np.testing.assert_array_equal(both(tmp_path / "a.parquet", "b"), again[:, 1:2])


@pytest.mark.parametrize("kind", ["float", "fixed", "uint8 images"])
def test_lists_are_examples(tmp_path, kind):
    x = np.random.default_rng(0).integers(0, 256, (12, 4, 5))
    if kind == "float":
        values, x = pyarrow.array(x.reshape(12, 20).astype(float).tolist()), x.reshape(12, 20)
    elif kind == "fixed":
        values = pyarrow.FixedSizeListArray.from_arrays(x.astype(np.float32).ravel(), 20)
        x = x.reshape(12, 20)
    else:
        values = pyarrow.array(x.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.uint8())))
        x = x[..., None].astype(np.uint8)
    table = pyarrow.table({"label": np.arange(12), "x": values})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    read = both(tmp_path / "a.parquet")
    np.testing.assert_array_equal(read, x)
    assert read.dtype == (np.uint8 if kind == "uint8 images" else np.float32)


@pytest.mark.parametrize("huggingface", [False, True])
def test_images_are_decoded(tmp_path, huggingface):
    x = colours(9, 8)
    content = [encoded(Image.fromarray(image)) for image in x]
    column = content
    if huggingface:
        column = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(content)]
    table = pyarrow.table({"image": column, "label": np.arange(9)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    np.testing.assert_array_equal(both(tmp_path / "a.parquet", channels=3), x)
    assert both(tmp_path / "a.parquet", size=4, limit=3).shape == (3, 4, 4, 3)
    shards = tmp_path / "shards"
    shards.mkdir()
    for i, (a, b) in enumerate(((0, 4), (4, 4), (4, 9))):
        parquet.write_table(table.slice(a, b - a), shards / f"train-{i}.parquet")
    np.testing.assert_array_equal(both(shards), x)


def test_what_is_wrong_is_said(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    good = encoded(Image.fromarray(colours(1, 8)[0]))
    small = encoded(Image.fromarray(colours(1, 7)[0]))
    cases = {
        "say which to use with --set data.key": {"a": [b"1"], "b": [b"2"]},
        "expected a column of images": {"a": ["text"]},
        "row 1 cannot be read as an image": {"a": [good, b"no image"]},
        "row 1 is 7 x 7 pixels, but .*row 0 is 8 x 8": {"a": [good, small]},
        "no image in row 1": {"a": [good, None]},
        "lists of 1 to 2 numbers": {"a": [[1.0], [1.0, 2.0]]},
        "has nulls": {"a": [1.0, None]},
        "NaN or infinite values in 1 of 2 examples": {"a": [1.0, float("nan")]},
        "more than float32 can": {"a": [1.0, 1e39]},
        "holds no rows": {"a": pyarrow.array([], pyarrow.float32())},
    }
    for message, columns in cases.items():
        parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(UserError, match=message) as inside:
            load(str(path))
        if "row 1" in message or "lists" in message:
            with pytest.raises(UserError) as outside:
                load(str(path), memory=0)
            assert str(outside.value) == str(inside.value)
    parquet.write_table(pyarrow.table({"a": [1.0], "b": ["text"]}), path)
    with pytest.raises(UserError, match="no column 'c'; it holds a"):
        load(str(path), "c")
    with pytest.raises(UserError, match=r"column 'b' .* holds string"):
        load(str(path), "b")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="not a readable Parquet file: it does not end as one"):
        load(str(path))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match="needs pyarrow: run `pip install"):
        load(str(path))


def test_few_bytes_do_not_become_many_numbers(tmp_path):
    """A column of one number, repeated, is packed to next to nothing."""
    table = pyarrow.table({"a": np.zeros(80 * 2**20, bool)})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 5e5
    with pytest.raises(UserError, match="more than 500 times as much"):
        load(str(tmp_path / "a.parquet"))
