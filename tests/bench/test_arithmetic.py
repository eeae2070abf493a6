"""What benchmarks count."""

import jax
import pytest

from kaem import CNN, KAEM, MixturePrior
from kaem.bench.training import flops_of_decoder
from kaem.runs.comparing import markdown_table


def test_the_arithmetic_of_the_hot_loop_is_counted_right():
    prior = MixturePrior(40, key=jax.random.key(0))
    model = KAEM(prior, CNN(81, (32, 32, 3), key=jax.random.key(0)))
    # Forward and backward, 50 chains, 40 steps: 45.4 GFLOP.
    assert 2 * flops_of_decoder(model) * 50 * 40 == pytest.approx(45.4e9, rel=2e-3)


def test_a_bar_does_not_end_a_cell():
    table = markdown_table([["", "a"], ["log p(x|z)", "1"]])
    assert table.splitlines()[2] == r"| log p(x\|z) | 1 |"
