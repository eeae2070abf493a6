"""What seeds and streams give: against independent implementations, as random numbers, and in every target.

A statistical test here fails by chance with a probability of at most 1e-6, were its numbers random; they are always the same.
"""

import ctypes
import json
import math
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from kaem.cli import main
from kaem.export import TARGETS
from kaem.export.c import bench, twin
from kaem.export.integer import quality, stream
from kaem.export.integer.stream import compared, quantiles
from kaem.export.verilog import synthesis
from support.random_integers import MODELS

c, hls, verilog = TARGETS["c"], TARGETS["hls"], TARGETS["verilog"]

WORD = 0xFFFFFFFF
COUNTED = np.arange(100_000)
LATENTS = 20


def written(folder, made):
    for name, content in made.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def left(x, bits):
    return (x << bits | x >> (32 - bits)) & WORD


def speck_round(a, b, key):
    a = (left(a, 24) + b & WORD) ^ key
    return a, left(b, 3) ^ a


def step(a, b):
    """One of xoroshiro64, as its authors write it."""
    b ^= a
    return left(a, 26) ^ b ^ (b << 9 & WORD), left(b, 13)


def drawn(seed, count):
    """32 bits each, in plain integers."""
    a, b = seed, 0x9E3779B9
    for key in range(16):
        a, b = speck_round(a, b, key)
    made = []
    for _ in range(count):
        made.append(a + b & WORD)
        a, b = step(a, b)
    return made


def test_the_round_and_the_step_are_the_published_ones():
    # Speck64/96, with the test vector of its authors (2013), appendix C.
    key, schedule = 0x03020100, [0x0B0A0908, 0x13121110]
    a, b = 0x74614620, 0x736E6165
    for i in range(26):
        a, b = speck_round(a, b, key)
        more, key = speck_round(schedule[i], key, i)
        schedule.append(more)
    assert (a, b) == (0x9F7952EC, 0x4175946C)
    # xoroshiro64*, whose outputs are multiples of the first word: the vector of rand_xoshiro.
    a, b, made = 1, 2, []
    for _ in range(6):
        made.append(a * 0x9E3779BB & WORD)
        a, b = step(a, b)
    assert made == [2654435771, 327208753, 4063491769, 4259754937, 261922412, 168123673]


def test_the_reference_equals_plain_integers():
    seeds = [*range(200), 0x80000000, 0x9E3779B9, WORD]
    for bits in (16, 23):
        expected = [[value >> (32 - bits) for value in drawn(seed, 7)] for seed in seeds]
        np.testing.assert_array_equal(quantiles(np.array(seeds), 7, bits), expected)


def test_a_stream_has_its_full_period_and_no_seed_starts_at_zero():
    """The step is a matrix over bits, of order 2^64 - 1 if no power of a proper divisor is the identity."""
    primes = (3, 5, 17, 257, 641, 65537, 6700417)
    order = 2**64 - 1
    assert math.prod(primes) == order

    def applied(matrix, vector):
        made = 0
        for i in range(64):
            made ^= matrix[i] if vector >> i & 1 else 0
        return made

    def power(matrix, exponent):
        made = [1 << i for i in range(64)]
        while exponent:
            if exponent & 1:
                made = [applied(matrix, column) for column in made]
            matrix = [applied(matrix, column) for column in matrix]
            exponent >>= 1
        return made

    columns = [step(1 << i & WORD, 1 << i >> 32) for i in range(64)]
    matrix = [a | b << 32 for a, b in columns]
    identity = [1 << i for i in range(64)]
    assert power(matrix, order) == identity
    assert all(power(matrix, order // prime) != identity for prime in primes)
    a = b = 0  # rounds backwards: what would become zero is no seed beside the constant
    for key in reversed(range(16)):
        b = left(a ^ b, 29)
        a = left((a ^ key) - b & WORD, 8)
    assert speck_round(a, b, 0) != (0, 0)
    assert b != stream.SECOND


def test_each_latent_is_uniform_over_counted_seeds():
    u = quantiles(COUNTED, LATENTS)
    p_values = [stats.chisquare(np.bincount(row >> 8, minlength=256)).pvalue for row in u.T]
    assert min(p_values) > 1e-6 / LATENTS
    # A mean of uniform numbers is off by 1 / sqrt(12 n) of its range: 5.5 of those, once in 10^7 for each latent.
    for few in (1_000, 100_000):
        error = np.abs((u[:few].mean(axis=0) + 0.5) / 65536 - 0.5)
        assert error.max() < 5.5 / np.sqrt(12 * few)
    # The first seeds as the lowest bits see them.
    assert min(stats.chisquare(np.bincount(row & 63)).pvalue for row in u.T) > 1e-6 / LATENTS


@pytest.mark.parametrize("step", [1, 2, 1 << 8, 1 << 15])
def test_neighbouring_seeds_and_latents_have_nothing_in_common(step):
    u = quantiles(COUNTED * step, LATENTS)
    many = LATENTS**2 * 2
    for x, y in ((u, u), (u[:-1], u[1:])):  # all pairs of latents: of one seed, and of neighbours
        found = np.corrcoef(x.T, y.T)[:LATENTS, LATENTS:]
        if x is y:
            np.fill_diagonal(found, 0)
        assert np.abs(found).max() * np.sqrt(len(x)) < stats.norm.isf(1e-6 / many / 2)
    cells = u >> 12  # and as pairs in 16 x 16 cells, which need not be correlated to depend
    pairs = [(cells[:, i], cells[:, i + 1]) for i in range(LATENTS - 1)]
    pairs += [(cells[::2, i], cells[1::2, i]) for i in range(LATENTS)]
    pairs += [(u[::2, i] & 15, u[1::2, i] & 15) for i in range(LATENTS)]
    p_values = [stats.chisquare(np.bincount(16 * a + b, minlength=256)).pvalue for a, b in pairs]
    assert min(p_values) > 1e-6 / len(p_values)


def test_a_stream_is_uniform_and_successive_draws_have_nothing_in_common():
    u = quantiles(np.array([0, 1]), 50_000)
    lags = (1, 2, 3, 10)
    z = [
        np.corrcoef(row[:-lag], row[lag:])[0, 1] * np.sqrt(row.size - lag)
        for row in u
        for lag in lags
    ]
    z.append(np.corrcoef(u)[0, 1] * np.sqrt(u.shape[1]))
    assert np.abs(z).max() < stats.norm.isf(1e-6 / len(z) / 2)
    for row in u:
        pairs = 16 * (row[:-1:2] >> 12) + (row[1::2] >> 12)
        assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-6 / 2


def test_the_test_of_uniformity_sees_what_is_uneven_and_what_is_too_even():
    rng = np.random.default_rng(0)
    for bits in (16, 23):
        fair = compared(lambda seeds: rng.integers(0, 1 << bits, (len(seeds), 3)), 3, bits)  # noqa: B023
        assert fair["uniformity_failures"] == 0 < fair["quantile_mismatches"]
        assert 1e-6 < fair["uniformity_p_value"] < 1

    def wrong(seeds):
        tilted = 65535 * rng.random(len(seeds)) ** 1.1
        return np.stack([seeds * 40503 % 65536, tilted.astype(int), seeds * 0], axis=1)

    found = compared(wrong, 3)
    assert found["uniformity_failures"] == 3
    assert found["uniformity_seeds"] == 100_000


def prior_of(q):
    return replace(q, layers=())


def test_c_called_from_python_equals_the_reference(tmp_path, needs, tiny_kan):
    needs("gcc")
    _, q = tiny_kan
    written(tmp_path, c.files(q, "two"))
    command = ["gcc", "-std=c99", "-O2", "-shared", "-fPIC", "two.c", "two_float.c", "-lm"]
    subprocess.run([*command, "-o", "two.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "two.so"))
    u, floats = (ctypes.c_uint16 * 6)(), (ctypes.c_float * 6)()
    state, image = (ctypes.c_uint32 * 2)(), (ctypes.c_uint8 * 16)()
    made, made_floats = [], []
    for seed in range(1_001):
        library.two_quantiles(ctypes.c_uint32(seed), u)
        library.two_float_quantiles(ctypes.c_uint32(seed), floats)
        made.append(list(u))
        made_floats.append(list(floats))
    np.testing.assert_array_equal(made, quantiles(np.arange(1_001), 6))
    expected = (quantiles(np.arange(1_001), 6, 23) + 0.5) / 2**23
    np.testing.assert_array_equal(made_floats, expected)
    library.two_stream_start(state, ctypes.c_uint32(7))
    images = []
    for _ in range(50):
        library.two_stream_sample(state, image)
        images.append(list(image))
    np.testing.assert_array_equal(images, q.stream(7, 50).reshape(50, -1))
    np.testing.assert_array_equal(images[0], q.sample([7])[0].ravel())
    assert len({tuple(image) for image in images}) > 40
    # Draws of all ones and of all zeros are inside (0, 1).
    for a, b in ((WORD, 0), (1, WORD)):
        state[0], state[1] = a, b
        library.two_float_stream_quantiles(state, floats)
        assert floats[0] == (1 - 2**-24 if b == 0 else 2**-24)


def verified(target, folder, q):
    files, few = target.files(q, "small"), {"samples": 300, "images": 5}
    return target.verify(written(folder, files), q, name="small", **few)


@pytest.mark.parametrize(("target", "program"), [(c, "gcc"), (hls, "g++")])
def test_verification_reports_uniformity_and_catches_a_mixer_that_does_not_mix(
    target, program, tmp_path, monkeypatch, needs
):
    needs(program, "g++")
    q = MODELS["kan"]()
    found = verified(target, tmp_path, q)
    assert (found["uniformity_seeds"], found["uniformity_failures"]) == (100_000, 0)
    assert found["uniformity_p_value"] > 1e-6 / 6
    assert found["quantile_mismatches"] == 0
    # The reference and what is exported agree with each other, on draws that are not uniform.
    monkeypatch.setattr(stream, "ROUNDS", 1)
    found = verified(target, tmp_path, q)
    assert {value for name, value in found.items() if "mismatches" in name} == {0}
    assert found["uniformity_failures"] > 0
    assert found["uniformity_p_value"] < 1e-9


def test_the_float_twin_and_verilog_are_tested_as_well(tmp_path, monkeypatch, needs, tiny_kan):
    needs("gcc", "iverilog")
    (model, _), q = tiny_kan, MODELS["kan"]()
    monkeypatch.setattr(stream, "ROUNDS", 1)
    found = bench.verify_twin(written(tmp_path, twin.files(model, "twin")), model, "twin", 5)
    assert found["float_uniformity_failures"] > 0
    assert found["float_quantile_mismatches"] == 0
    written(tmp_path, verilog.files(prior_of(q), "small"))
    monkeypatch.setattr(synthesis, "sections", lambda parts: {})
    found = verilog.verify(tmp_path, prior_of(q), name="small", samples=10)
    assert found["uniformity_failures"] > 0


def test_verification_catches_a_mixer_that_was_lost_in_c_alone(tmp_path, needs):
    needs("gcc", "g++")
    q = MODELS["kan"]()
    written(tmp_path, c.files(q))
    source = (tmp_path / "kaem.c").read_text()
    assert source.count("round < 16") == 1
    (tmp_path / "kaem.c").write_text(source.replace("round < 16", "round < 1"))
    found = c.verify(tmp_path, q, samples=10, images=5)
    assert found["sample_mismatches"] > 0 < found["stream_mismatches"]
    assert found["quantile_mismatches"] > 500_000
    assert found["uniformity_failures"] > 0


GOING_ON = """
module going_on;
    reg clk = 0, rst = 1, stream = 1;
    always #5 clk = !clk;
    initial #42 rst = 0;
    integer draws = 0, seeds = 0;
    wire s_tready, m_tvalid;
    wire [15:0] m_tdata;
    m_quantiles quantiles (.clk(clk), .rst(rst), .stream(stream), .s_tdata(seeds == 0 ? 32'd7 : 32'd8), .s_tvalid(!rst),
        .s_tready(s_tready), .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(1'b1));
    always @(posedge clk) if (!rst) begin
        if (s_tready) seeds <= seeds + 1;
        if (m_tvalid) begin
            $display("%0d", m_tdata);
            draws <= draws + 1;
            if (draws == 14) stream <= 0;
            if (draws == 23) $finish;
        end
    end
endmodule
"""


def test_in_verilog_a_stream_ends_with_its_sample_and_takes_the_next_seed(tmp_path, needs):
    needs("iverilog", "vvp")
    q = MODELS["kan"]()  # six latents
    written(tmp_path, verilog.files(prior_of(q), "m") | {"going_on.v": GOING_ON})
    command = ["iverilog", "-g2005", "-o", "bench", "m_quantiles.v", "going_on.v"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run(
        ["vvp", "bench"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    made = [int(line) for line in said.stdout.split() if line.isdigit()]
    expected = [*quantiles(np.array([7]), 18)[0], *quantiles(np.array([8]), 6)[0]]
    assert made[:24] == expected


def test_draws_that_are_not_uniform_are_an_error(tmp_path, capsys, monkeypatch, needs, tiny_kan):
    needs("gcc", "g++")
    monkeypatch.setattr(quality, "quality", lambda model, q: {})
    monkeypatch.setattr(stream, "ROUNDS", 1)
    tiny_kan[0].save(tmp_path / "model.safetensors")
    command = [
        "export",
        str(tmp_path / "model.safetensors"),
        "--to",
        "c",
        "-o",
        str(tmp_path / "c"),
    ]
    assert main([*command, "--verify"]) == 2
    said = capsys.readouterr()
    assert "uniformity_p_value = " in said.out
    assert "draws from counted seeds are not uniform" in said.err
    found = json.loads((tmp_path / "c" / "verification.json").read_text())
    assert found["uniformity_failures"] == found["float_uniformity_failures"] == 6
