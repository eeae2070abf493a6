"""The model for high-level synthesis, simulated in C++ and compared with the integer reference."""

import subprocess

import pytest

from kaem import UserError
from kaem.export import TARGETS
from kaem.export.hls.target import PART
from support.random_integers import MODELS, random_cnn

hls = TARGETS["hls"]


@pytest.fixture(autouse=True)
def _compiler(needs):
    needs("g++")


def written(folder, made):
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_simulation_equals_the_reference(name, tmp_path):
    q = MODELS[name]()
    made = hls.files(q, "small")
    assert made == hls.files(q, "small")
    found = hls.verify(written(tmp_path, made), q, name="small", samples=3_000, images=50)
    assert found.pop("tool").startswith("g++ ")
    assert found.pop("uniformity_p_value") > 1e-6 / 6
    counts = {"prior_samples": 3_000, "images": 50, "draws": 512, "uniformity_seeds": 100_000}
    whats = ("prior", "image", "draw", "quantile")
    wrong = {f"{what}_mismatches": 0 for what in whats} | {"uniformity_failures": 0}
    assert found == counts | wrong


def test_the_test_bench_passes_as_exported_and_fails_on_a_wrong_vector(tmp_path):
    q = MODELS["kan"]()
    written(tmp_path, hls.files(q))
    options = ["-std=c++11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    options += ["-Wno-unknown-pragmas", "-fsanitize=address,undefined"]
    command = ["g++", *options, "kaem_hls.cpp", "kaem_tb.cpp", "-o", "bench"]
    subprocess.run(command, cwd=tmp_path, check=True)

    def end():
        done = subprocess.run(["./bench"], cwd=tmp_path, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, done.stdout

    passed = "prior samples 200, mismatches 0; images 4, mismatches 0; draws 200, mismatches 0\n"
    assert end() == (0, passed)
    golden = (tmp_path / "kaem_golden.txt").read_text().splitlines()
    for line, text in (
        (1, "mismatches 1; images 4, mismatches 0"),
        (201, "images 4, mismatches 1; draws 200, mismatches 0"),
        (404, "draws 200, mismatches 1"),  # the last of the stream
    ):
        *head, last = golden[line].split()
        changed = [
            *golden[:line],
            " ".join([*head, str((int(last) + 1) % 256)]),
            *golden[line + 1 :],
        ]
        (tmp_path / "kaem_golden.txt").write_text("\n".join(changed) + "\n")
        code, said = end()
        assert code == 1
        assert text in said
    (tmp_path / "kaem_golden.txt").write_text("\n".join(golden[:-1]) + "\n")
    assert end() == (2, "the golden vectors end early\n")


def test_pragmas_and_script_name_what_they_should():
    q = random_cnn(0, widths=(34, 5))
    made = {
        name: content.decode() for name, content in hls.files(q, part="xczu3eg-sbva484-1-e").items()
    }
    source = made["kaem_hls.cpp"]
    for pragma in ("INTERFACE axis port=image", "DATAFLOW", "PIPELINE II=1", "STREAM variable=x_2"):
        assert f"#pragma HLS {pragma}" in source
    # 34 products for each tap: 2 * 17, so that two lanes are the most below seventeen.
    assert "variable=image cyclic factor=2 dim=3" in source
    assert "set_part {xczu3eg-sbva484-1-e}" in made["run_hls.tcl"]
    assert PART in hls.files(q)["run_hls.tcl"].decode()
    with pytest.raises(UserError, match="the part must be a name"):
        hls.files(q, part="a}; exit")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_thousand_samples_and_a_thousand_images(name, tmp_path):
    q = MODELS[name]()
    found = hls.verify(written(tmp_path, hls.files(q)), q)
    assert (found["prior_samples"], found["images"]) == (100_000, 1_000)
    assert found["prior_mismatches"] == found["image_mismatches"] == 0
