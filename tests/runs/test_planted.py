"""Files that somebody put where ours go: none of another place is emptied, written or believed."""

import json
import os

import numpy as np
import pytest

import kaem
from kaem.data import load
from kaem.data.store import folder
from kaem.files import write_atomically
from kaem.runs import RunFolder
from kaem.runs.locking import writing
from kaem.training import checkpoint
from support.training import fresh, images, tiny


def test_a_lock_that_is_a_name_of_another_file_is_refused(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    os.link(precious, run.lock_file)
    with pytest.raises(kaem.UserError, match="another name of a file elsewhere"), writing(run):
        pass
    assert precious.read_text() == "mine"


def test_nothing_is_written_through_a_link_at_a_temporary_name(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / f".out.json.{os.getpid()}.tmp").symlink_to(precious)
    write_atomically(tmp_path / "out.json", b"ours")
    assert precious.read_text() == "mine"
    assert (tmp_path / "out.json").read_bytes() == b"ours"
    assert not (tmp_path / "out.json").is_symlink()


@pytest.mark.parametrize(
    "change",
    [{"rates": "x"}, {"rates": -5.0}, {"sums": [1, 2]}, {"sums": {"loss": "x"}}, {"logged": -10}],
)
def test_a_checkpoint_that_makes_no_sense_is_not_used(tmp_path, monkeypatch, change):
    settings, x = tiny(), images()
    state = fresh(settings, x)
    checkpoint.write(tmp_path, state, keep=2)
    real = checkpoint._header

    def altered(state):
        header = real(state)
        return header | {"loop": json.dumps(json.loads(header["loop"]) | change)}

    monkeypatch.setattr(checkpoint, "_header", altered)
    checkpoint.write(tmp_path, state.__class__(10, state.model, state.optimiser, state.memory), 2)
    restored, (note,) = checkpoint.read(tmp_path, fresh(settings, x))
    assert restored.step == 0
    assert "makes no sense" in note


def test_decoded_data_of_another_shape_are_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 255, (50, 8, 8, 1), np.uint8))
    options = {"size": 16, "memory": 1}
    whole = load(str(tmp_path / "x.npy"), **options)[:]
    (cached,) = folder().glob("*.npy")
    np.save(cached, np.zeros((10, 4), np.uint8))
    again = load(str(tmp_path / "x.npy"), **options)
    np.testing.assert_array_equal(again[:], whole)
    assert again.shape == (50, 16, 16, 1)
