"""`kaem export` as a user meets it: what is written, what is refused, and that nothing is left behind."""

import errno
import json
import os
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

import kaem
from kaem.baselines import VAE
from kaem.cli import main
from kaem.export import TARGETS, quantise
from kaem.export.integer import quality
from kaem.export.lut import Lut
from kaem.export.writing import write_together
from kaem.files import write_atomically
from kaem.layers.encoder import Encoder


@pytest.fixture
def model(kan_file):
    return kan_file


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Measure quality on fewer images than a user's report takes."""
    real = quality.quality
    monkeypatch.setattr(quality, "quality", lambda model, q: real(model, q, 64))


def test_tables_are_written_and_verified(model, tmp_path, needs, capsys):
    needs("gcc")
    out = tmp_path / "lut"
    command = ["export", str(model), "--to", "lut", "-o", str(out), "--entries", "256"]
    assert main([*command, "--verify", "--json", "--name", "two"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["verification"]["prior_mismatches"] == 0
    with np.load(out / "two_tables.npz") as file:
        words = quantise(kaem.load(model), entries=256, generator=False).tables.words
        np.testing.assert_array_equal(file["words"], words)
    assert json.loads((out / "verification.json").read_text())["prior_samples"] == 100_000
    # Another name into the same folder takes the place of the first.
    assert main([*command, "--name", "three"]) == 0
    names = {path.name for path in out.iterdir()}
    assert not any(name.startswith("two") for name in names)
    assert "verification.json" not in names


def test_c_is_verified_bit_by_bit_in_the_folder_of_its_run(model, tmp_path, needs, capsys):
    needs("gcc", "g++")
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(model, run)
    assert main(["export", str(run), "--to", "c", "--verify", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    results, out = printed["results"], run / "export" / "c"
    assert results["quality"]["ks_largest"] < 1e-3
    verified = results["verification"]
    wrong = {name: count for name, count in verified.items() if "mismatches" in name}
    assert len(wrong) == 11  # in C99, with sanitisers, in C++, and of the float twin
    assert set(wrong.values()) == {0}
    assert (verified["prior_samples"], verified["images"]) == (100_000, 1_000)
    assert json.loads((out / "verification.json").read_text()) == verified
    assert {str(path) for path in out.iterdir()} == set(printed["files"])
    kept = json.loads((out / "export.json").read_text())
    assert kept | {"verification": verified} == results
    names = ["kaem.h", "kaem.c", "kaem_example.c", "kaem_float.h", "kaem_float.c"]
    assert kept["files"] == names
    # What is in the folder is what the library makes of the same file.
    made = TARGETS["c"].files(quantise(kaem.load(model)))
    assert {name: (out / name).read_bytes() for name in names} == made


@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("kaem.c", rb"(kaem_multiplier_1\[\d+\] = \{)"),
        ("kaem_float.c", rb"(kaem_weights_1\[\d+\]\[\d+\] = \{\n\{[^}]*\},\n\{)"),
    ],
)
def test_a_wrong_number_in_a_written_file_is_an_error(
    model, tmp_path, needs, capsys, monkeypatch, file, before
):
    needs("gcc", "g++")

    def corrupted(folder, contents, stale):
        contents[file], changed = re.subn(before, rb"\g<1>9000 + ", contents[file])
        assert changed == 1
        write_together(folder, contents, stale)

    monkeypatch.setattr("kaem.export.write_together", corrupted)
    assert main(["export", str(model), "--to", "c", "-o", str(tmp_path), "--verify"]) == 2
    said = capsys.readouterr().err
    assert "does not equal the reference" in said
    found = json.loads((tmp_path / "verification.json").read_text())
    twin = file == "kaem_float.c"
    assert (found["image_mismatches"] > 0, found["float_mismatches"] > 0) == (not twin, twin)
    assert found["prior_mismatches"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "lut", "--entries", "1000"], "power of two"),
        (["--to", "lut", "--bits", "3"], "4 to 16 bits"),
        (["--to", "c", "--inner-bits", "40"], "from 4 to 16"),
        (["--to", "c", "--name", "2x y"], "cannot be that of a C function"),
        (["--to", "c", "--name", "string"], "no word of C"),
        (["--to", "c", "--generator"], "--generator is for"),
        (["--to", "onnx", "--bits", "8"], "in floating point"),
        (["--to", "fortran"], "invalid choice"),
        ([], "required"),
    ],
)
def test_mistakes_are_explained_and_write_nothing(model, tmp_path, capsys, arguments, message):
    assert main(["export", str(model), "-o", str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr().err
    assert message in captured
    assert "Traceback" not in captured
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"prior_mismatches": 0, "sanitised_mismatches_cpp": 3}, "does not equal the reference"),
        ({"top_missing": "iverilog"}, "install the package iverilog"),
        ({"prior_mismatches": 0, "float_uniformity_failures": 2}, "are not uniform"),
    ],
)
def test_a_verification_that_failed_is_an_error(
    model, tmp_path, capsys, monkeypatch, found, message
):
    monkeypatch.setattr(Lut, "verify", lambda self, folder, subject, name: found)
    assert main(["export", str(model), "--to", "lut", "-o", str(tmp_path), "--verify"]) == 2
    assert message in capsys.readouterr().err
    assert json.loads((tmp_path / "verification.json").read_text()) == found


def test_what_cannot_be_exported_is_refused(model, tmp_path, capsys):
    prior = kaem.UnivariatePrior(2, 2, key=jax.random.key(0), grid_size=5, cells=32)
    wavelets = kaem.KAN(2, (4,), depth=1, basis="morlet", key=jax.random.key(1), output="identity")
    kaem.KAEM(prior, wavelets, 0.1).save(tmp_path / "wavelets.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(model.read_bytes()[:500])
    encoder = Encoder((8, 8, 1), 3, key=jax.random.key(0), widths=(4,))
    rival = VAE(encoder, kaem.CNN(3, (8, 8, 1), widths=(4,), key=jax.random.key(1)), 0.3)
    rival.save(tmp_path / "rival.safetensors")
    for name, message in (
        ("wavelets", "no shared basis"),
        ("cut", "not a readable KAEM model"),
        ("rival", "needs a KAEM"),
    ):
        path = tmp_path / f"{name}.safetensors"
        assert main(["export", str(path), "--to", "c", "-o", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    wave = str(tmp_path / "wavelets.safetensors")  # its prior is a table like any other
    assert main(["export", wave, "--to", "lut", "-o", str(tmp_path / "out")]) == 0


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("function", "call"), [("fsync", 3), ("rename", 2), ("rename", 6)])
def test_an_export_is_all_or_nothing(model, tmp_path, capsys, monkeypatch, function, call):
    command = ["export", str(model), "--to", "lut", "-o"]
    out, new = tmp_path / "out", tmp_path / "deep" / "new"
    assert main([*command, str(out)]) == 0
    (out / "verification.json").write_text("{}")
    (out / "notes.txt").write_text("mine")
    before, real, calls = contents(out), getattr(os, function), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing)
        for folder in (out, new):
            calls.clear()
            code = main([*command, str(folder), "--entries", "256", "--name", "other"])
            if len(calls) >= call:  # a new folder has fewer files to move
                assert code == 2
                said = capsys.readouterr().err
                assert f"could not write {folder}: No space left on device" in said
                assert "free some space" in said
                assert not (tmp_path / "deep").exists()
    assert contents(out) == before
    assert main([*command, str(out), "--entries", "256", "--name", "other"]) == 0
    names = {"other_tables.h", "other_tables.mem", "other_tables.npz", "export.json", "notes.txt"}
    assert set(contents(out)) == names


def test_a_folder_that_is_in_the_way_stays(model, tmp_path, capsys):
    (tmp_path / "kaem_tables.mem").mkdir()
    (tmp_path / "kaem_tables.mem" / "mine.txt").write_text("mine")
    (tmp_path / "kaem_tables.h").write_text("mine too")
    assert main(["export", str(model), "--to", "lut", "-o", str(tmp_path)]) == 2
    assert "kaem_tables.mem is a folder" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"kaem_tables.mem", "kaem_tables.h"}
    assert (tmp_path / "kaem_tables.mem" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "kaem_tables.h").read_text() == "mine too"


def test_a_full_disk_and_one_that_cannot_be_written(model, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(disk)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mounted, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs leave to mount a file system")
    try:
        command = ["export", str(model), "--to", "lut", "-o"]
        assert main([*command, str(disk), "--entries", "64"]) == 0
        before = contents(disk)
        for folder in (disk, disk / "new" / "one"):
            assert main([*command, str(folder), "--entries", "4096"]) == 2
            assert "free some space" in capsys.readouterr().err
            assert contents(disk) == before
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert main([*command, str(disk), "--entries", "128"]) == 2
        said = capsys.readouterr().err
        assert "Read-only file system" in said
        assert "change its permissions" in said
        assert "space" not in said
        assert contents(disk) == before
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space or choose another place"),
        (errno.EDQUOT, "free some space or choose another place"),
        (errno.EROFS, "choose another place or change its permissions"),
        (errno.EACCES, "choose another place or change its permissions"),
        (errno.EPERM, "choose another place or change its permissions"),
        (errno.EIO, "see to that or choose another place"),
    ],
)
def test_advice_fits_what_kept_a_file_from_being_written(tmp_path, monkeypatch, number, advice):
    def failing(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kaem.UserError) as caught:
        write_atomically(tmp_path / "file", b"new")
    assert f"{os.strerror(number)}. Nothing that was there before is changed; {advice}," in str(
        caught.value
    )
    assert ("space" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert list(tmp_path.iterdir()) == []
