"""Verilog against the integer reference in Python: simulated, linted, synthesised, where the programs are installed.

Most models are random integers, not trained: every bit of every table and weight then matters, and nothing compiles.
"""

import json
import subprocess
from dataclasses import replace

import jax
import numpy as np
import pytest

from kaem import CNN, KAEM, KAN, MixturePrior, UnivariatePrior, UserError
from kaem.export import TARGETS, Quantised, quantise
from kaem.export.integer.layers import Dense, Kolmogorov, Scaling, Sum, Upsample
from kaem.export.integer.tables import Tables, _segments
from kaem.export.verilog import synthesis
from kaem.export.verilog.prior import prior_files
from kaem.export.verilog.text import bits_of, memory, packed
from support.random_integers import MODELS

verilog = TARGETS["verilog"]


def random_tables(rng, shape, entries=64, bits=16, interpolate=True, addressing="uniform"):
    segments = _segments(entries, interpolate, addressing)
    latents, last = int(np.prod(shape)), segments[-1]
    words = rng.integers(
        0, 1 << bits, (latents, last.offset + (1 << last.cells) + int(interpolate))
    )
    words[:, 0], words[:, -1] = 0, (1 << bits) - 1
    bounds = np.zeros(latents), np.ones(latents)
    return Tables(words, *bounds, shape, bits, interpolate, segments)


def random_sum(rng, tables):
    q = tables.shape[0]
    return Sum(rng.integers(1, 1 << 17, (q, len(tables.words) // q)), tables.bits + 1)


def random_scaling(rng, outputs, reach, low, high, slope=None):
    return Scaling.of((high - low) / reach * rng.uniform(0.5, 1.5, outputs), low, high, slope)


def random_kan(rng, tables, out=12, shape=(3, 2, 1)):
    def layer(inputs, functions, outputs, cells, bits, high):
        top = (1 << (bits - 1)) - 1
        knots = rng.integers(-top, top + 1, (inputs, (1 << cells) + 1, functions))
        weights = rng.integers(-top, top + 1, (outputs, inputs, functions))
        reach = 2 * top**2 * np.sqrt(inputs * functions)
        scaling = random_scaling(rng, outputs, reach, 0, high)
        bias = rng.integers(0, int(reach), outputs)
        return Kolmogorov(knots, weights, bias, scaling, cells, bits)

    layers = (
        layer(tables.shape[0], 3, 4, 5, 16, (1 << 16) - 1),
        layer(4, 5, int(np.prod(shape)), 6, 8, (1 << out) - 1),
    )
    sigmoid = rng.integers(0, 256, 4096) if out == 12 else None
    return Quantised(tables, random_sum(rng, tables), layers, sigmoid, 0.0, 1.0, shape)


def random_cnn(rng, tables, out=12, smallest=(2, 3, 3), inner=5, channels=2):
    h, w, c = smallest
    size = h * w * c

    def upsample(inputs, outputs, low, high, slope):
        kernel = rng.integers(-127, 128, (4, 4, inputs, outputs))
        bias = rng.integers(-999, 9999, outputs)
        scaling = random_scaling(rng, outputs, 127**2 * inputs, low, high, slope)
        return Upsample(kernel, bias, scaling, 8)

    dense = Dense(
        rng.integers(-127, 128, (size, tables.shape[0])),
        rng.integers(-(10**6), 10**6, size),
        random_scaling(rng, size, 127 << 16, -127, 127, 0.1),
        smallest,
        8,
        32768,
    )
    layers = (
        dense,
        upsample(c, inner, -127, 127, 0.1),
        upsample(inner, channels, 0, (1 << out) - 1, None),
    )
    sigmoid = rng.integers(0, 256, 4096) if out == 12 else None
    shape = (4 * h, 4 * w, channels)
    return Quantised(tables, random_sum(rng, tables), layers, sigmoid, 0.0, 1.0, shape)


def prior_of(q):
    return replace(q, layers=())


def written(folder, q, generator=True):
    made = verilog.files(q if generator else prior_of(q), "model")
    for file, content in made.items():
        (folder / file).write_bytes(content)
    return sorted(f for f in made if f.endswith(".v") and not f.endswith("_tb.v"))


PRIORS = {
    "linear": {"shape": (3, 2)},
    "one latent": {"shape": (1,), "entries": 1024},
    "nearest": {"shape": (5,), "interpolate": False},
    "one latent, nearest": {"shape": (1,), "interpolate": False},
    "tails": {"shape": (3,), "addressing": "tails", "bits": 12},
    "tails, nearest": {"shape": (2,), "addressing": "tails", "interpolate": False, "bits": 7},
    "fewest": {"shape": (4,), "addressing": "tails", "entries": 8, "bits": 4},
    "tails without rest": {"shape": (2,), "addressing": "tails", "entries": 8192},
    "an entry for each quantile": {"shape": (1,), "entries": 65536},
    "one bit within a cell": {"shape": (1,), "entries": 32768},
}


@pytest.mark.parametrize("name", PRIORS)
def test_every_kind_of_prior_equals_the_reference(name, tmp_path, needs):
    needs("iverilog", "vvp")
    rng = np.random.default_rng(1)
    q = random_kan(rng, random_tables(rng, **PRIORS[name]))
    sources = written(tmp_path, q, generator=False)
    assert synthesis.simulate(tmp_path, "model_prior_tb", ["model_prior.v"], {}).mismatches == 0
    for seeded in (0, 1, 2):
        assert synthesis.simulate(tmp_path, "model_tb", sources, {"SEEDED": seeded}).mismatches == 0


GENERATORS = {
    "kan": lambda rng: random_kan(rng, random_tables(rng, (3, 2))),
    "kan, codes": lambda rng: random_kan(rng, random_tables(rng, (1,), bits=12), 16, (7,)),
    "cnn": lambda rng: random_cnn(rng, random_tables(rng, (2, 2))),
    "cnn of one pixel, codes": lambda rng: random_cnn(
        rng, random_tables(rng, (3,)), 16, (1, 1, 1), 1, 1
    ),
    "cnn with hidden layers": lambda rng: MODELS["cnn-hidden"](),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_kind_of_generator_equals_the_reference(name, tmp_path, needs):
    needs("iverilog", "vvp")
    q = GENERATORS[name](np.random.default_rng(2))
    made = q.generate(np.random.default_rng(3).integers(0, 1 << 16, (50, len(q.tables.words))))
    assert len(np.unique(made)) > 30  # not all clipped
    sources = written(tmp_path, q)
    for seeded in (0, 1, 2):
        assert synthesis.simulate(tmp_path, "model_tb", sources, {"SEEDED": seeded}).mismatches == 0


@pytest.mark.parametrize("name", [*GENERATORS, "nearest", "tails"])
def test_verilator_has_nothing_to_say(name, tmp_path, needs):
    needs("verilator")
    rng = np.random.default_rng(2)
    if name in GENERATORS:
        sources = written(tmp_path, GENERATORS[name](rng))
    else:
        q = random_kan(rng, random_tables(rng, **PRIORS[name]))
        sources = written(tmp_path, q, generator=False)
    assert synthesis.lint(tmp_path, "model_top", sources)["lint_warnings"] == 0


@pytest.mark.parametrize(
    "file", ["model_prior_odd.mem", "model_2_dense_weights.mem", "model_4_dense_constants.mem"]
)
def test_the_benches_notice_a_wrong_bit_in_a_memory(file, tmp_path, needs):
    needs("iverilog", "vvp")
    sources = written(tmp_path, GENERATORS["kan"](np.random.default_rng(2)))
    lines = (tmp_path / file).read_text().split()
    # The uppermost digit of every word: a single word may not be read by the few golden vectors.
    wrong = [f"{int(line[0], 16) ^ 1:x}{line[1:]}" for line in lines]
    (tmp_path / file).write_text("\n".join(wrong) + "\n")
    bench, needed = "model_tb", sources
    if "prior" in file:
        bench, needed = "model_prior_tb", ["model_prior.v"]
    assert synthesis.simulate(tmp_path, bench, needed, {}).mismatches > 0


def test_the_bench_notices_one_wrong_word(tmp_path, needs):
    needs("iverilog", "vvp")
    rng = np.random.default_rng(2)
    written(tmp_path, random_kan(rng, random_tables(rng, (3,))), generator=False)
    golden = tmp_path / "model_golden_prior_words.mem"
    lines = golden.read_text().split()
    lines[100] = f"{int(lines[100], 16) ^ 1:04x}"
    golden.write_text("\n".join(lines) + "\n")
    assert synthesis.simulate(tmp_path, "model_prior_tb", ["model_prior.v"], {}).mismatches == 1


PACE = """
module pace;
    reg clk = 0, rst = 1;
    always #5 clk = !clk;
    initial #42 rst = 0;
    integer clocks = 0, first = -1, words = 0;
    wire s_tready, m_tvalid;
    m_prior prior (.clk(clk), .rst(rst), .s_tdata(16'd999), .s_tvalid(!rst), .s_tready(s_tready),
        .m_tdata(), .m_tvalid(m_tvalid), .m_tready(1'b1), .m_tlast());
    always @(posedge clk) if (!rst) begin
        clocks <= clocks + 1;
        if (m_tvalid) words <= words + 1;
        if (m_tvalid && first < 0) first <= clocks;
        if (clocks == 1000) begin
            $display("%0d %0d", first, words);
            $finish;
        end
    end
endmodule
"""


@pytest.mark.parametrize(("interpolate", "delay"), [(True, 5), (False, 2)])
def test_the_prior_gives_a_word_at_every_clock(interpolate, delay, tmp_path, needs):
    needs("iverilog", "vvp")
    tables = random_tables(np.random.default_rng(0), (3,), interpolate=interpolate)
    for file, content in prior_files(tables, "m").items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "pace.v").write_text(PACE)
    subprocess.run(
        ["iverilog", "-g2005", "-o", "pace", "m_prior.v", "pace.v"], cwd=tmp_path, check=True
    )
    said = subprocess.run(["vvp", "pace"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert [int(word) for word in said.stdout.split()[:2]] == [delay, 1000 - delay]


def test_memories_are_two_s_complement():
    values = np.array([0, 1, -1, 127, -128])
    assert memory(values, 8).split() == [b"00", b"01", b"ff", b"7f", b"80"]
    assert packed([(values, 8), (np.array([1, -1, 2, -2, 3]), 4)]).split() == [
        b"001",
        b"01f",
        b"ff2",
        b"7fe",
        b"803",
    ]
    for low, high, bits in ((0, 1, 2), (-1, 0, 1), (-128, 127, 8), (-129, 0, 9), (0, 128, 9)):
        assert bits_of(low, high) == bits


def test_files_are_the_same_every_time_and_name_no_place(tmp_path):
    q = GENERATORS["cnn"](np.random.default_rng(2))
    made = verilog.files(q, "model")
    assert made == verilog.files(q, "model")
    for file, content in made.items():
        assert file.startswith("model_")
        assert b"@name@" not in content
        assert b"/tmp" not in content
        assert b"/work" not in content


def test_missing_programs_are_named_with_their_packages(tmp_path, monkeypatch):
    q = GENERATORS["kan"](np.random.default_rng(2))
    written(tmp_path, q)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = verilog.verify(tmp_path, q, samples=10, images=1)
    assert found["prior_missing"] == found["top_missing"] == "iverilog"
    assert found["lint_missing"] == "verilator"
    assert found["synthesis_missing"] == "yosys"
    assert found["clock_missing"] == "nextpnr-ice40"
    assert found["generator_rom_bits"] > 4096 * 8
    json.dumps(found)


def test_a_folder_without_an_export_is_refused(tmp_path):
    with pytest.raises(UserError, match="one Verilog export"):
        verilog.verify(tmp_path, GENERATORS["kan"](np.random.default_rng(2)))


def netlist(path):
    """A flip-flop that toggles, as yosys writes it."""
    top = {
        "attributes": {"top": f"{1:032b}"},
        "ports": {
            "clk": {"direction": "input", "bits": [2]},
            "q": {"direction": "output", "bits": [3]},
        },
        "cells": {
            "ff": {
                "type": "SB_DFF",
                "parameters": {},
                "attributes": {},
                "port_directions": {"C": "input", "D": "input", "Q": "output"},
                "connections": {"C": [2], "D": [4], "Q": [3]},
            },
            "lut": {
                "type": "SB_LUT4",
                "parameters": {"LUT_INIT": "01" * 8},
                "attributes": {},
                "port_directions": dict.fromkeys(("I0", "I1", "I2", "I3"), "input")
                | {"O": "output"},
                "connections": {"I0": [3], "I1": ["0"], "I2": ["0"], "I3": ["0"], "O": [4]},
            },
        },
        "netnames": {},
    }
    path.write_text(json.dumps({"creator": "by hand", "modules": {"top": top}}))
    return path


def test_cells_are_counted_and_the_last_slowest_clock_is_read(tmp_path):
    counted = synthesis.sizes(netlist(tmp_path / "top_ice40.json"), "top")
    assert counted == {"lut": 1, "ff": 1, "lutram": 0, "bram": 0, "dsp": 0}
    log = """
Info: Max frequency for clock       'a': 100.00 MHz (PASS at 12.00 MHz)
Info: Max frequency for clock       'a': 120.50 MHz (PASS at 12.00 MHz)
Info: Max frequency for clock 'b$glb_clk': 130.00 MHz (PASS at 12.00 MHz)
"""
    assert synthesis.slowest_clock(log) == 120.5


def test_nextpnr_estimates_a_clock(tmp_path, needs):
    needs("nextpnr-ice40")
    assert 50 < synthesis.clock(netlist(tmp_path / "top_ice40.json")) < 2000


@pytest.mark.parametrize(("interpolate", "xilinx"), [(True, (1, 2)), (False, (1, 1))])
def test_the_prior_of_one_coordinate_is_in_block_ram(interpolate, xilinx, tmp_path, needs):
    needs("yosys")
    rng = np.random.default_rng(0)
    tables = random_tables(rng, (1,), entries=1024, interpolate=interpolate)
    for file, content in prior_files(tables, "one").items():
        (tmp_path / file).write_bytes(content)
    found = synthesis.synthesis(tmp_path, "one", "one_prior", ["one_prior.v"])
    assert found["one_ice40_bram"] == 4  # of 4 kbit each: no bit is stored twice
    assert 1 <= found["one_ecp5_bram"] <= 2
    assert xilinx[0] <= found["one_xilinx7_bram"] <= xilinx[1]
    assert found["one_ice40_lut"] < 600


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kan", "cnn"])
def test_an_exported_model_verifies(kind, tmp_path, needs):
    needs("iverilog", "vvp")
    key = jax.random.key(0)
    if kind == "kan":
        prior = UnivariatePrior(3, key=key)
        model = KAEM(prior, KAN(prior.shape[0], (4, 4, 1), key=key))
    else:
        prior = MixturePrior(4, key=key)
        model = KAEM(prior, CNN(prior.shape[0], (8, 8, 1), key=key, widths=(4,)))
    q = quantise(model)
    written(tmp_path, q)
    found = verilog.verify(tmp_path, q)
    assert found["prior_samples"] == 100_000
    assert found["prior_mismatches"] == 0
    assert found["images"] == 10
    assert found["image_mismatches"] == 0
    assert found["image_clocks"] > np.prod(q.data_shape)
    assert (found["stream_samples"], found["stream_mismatches"]) == (10, 0)
    assert found["uniformity_failures"] == 0
    assert found.get("lint_warnings", 0) == 0
    if "one_ice40_bram" in found:
        assert found["one_ice40_bram"] == 4


@pytest.mark.slow
def test_an_exported_prior_verifies_with_more_seeds_than_are_streamed(tmp_path, needs):
    needs("iverilog", "vvp")
    rng = np.random.default_rng(1)
    q = random_kan(rng, random_tables(rng, (3, 2)))
    written(tmp_path, q, generator=False)
    found = verilog.verify(tmp_path, prior_of(q), samples=300)
    assert (found["seeded_samples"], found["seeded_mismatches"]) == (300, 0)
    assert (found["stream_samples"], found["stream_mismatches"]) == (256, 0)
