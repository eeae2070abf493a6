r"""Random quantiles from seeds, the same in every target: a seed is mixed, then drawn from.

The state is two words of 32 bits. It begins with the seed and a constant, mixed by `ROUNDS` rounds of the cipher Speck64
(Beaulieu et al., 2013) with their number as key,

$$a \leftarrow \big((a \ggg 8) + b\big) \oplus r,\qquad b \leftarrow (b \lll 3) \oplus a.$$

A round is invertible, so seeds never share a state. After 8 rounds each bit of a seed flips each bit of the state half of the
time; twice as many are taken. A draw is then $a + b$, upper bits first, and xoroshiro64 (Blackman and Vigna, 2018) moves on
with a period of $2^{64} - 1$. Neither multiplies: in Verilog both are one adder and a few exclusive ors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy import stats

from .tables import U_BITS

ROUNDS = 16
SECOND = 0x9E3779B9  # the state's second word beside a seed; from none does zero follow, which would stay
FALSE_ALARM = 1e-6  # of the test of uniformity, all latents together
COUNTER_SEEDS = 100_000
MOST_STREAMED = 256  # samples of a stream that are compared: the reference draws them one by one
_BINS = 64


def _rotated(x: Int[np.ndarray, " n"], bits: int) -> Int[np.ndarray, " n"]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def quantiles(
    seeds: Int[np.ndarray, " n"], latents: int, bits: int = U_BITS
) -> Int[np.ndarray, "n L"]:
    """Draw the first quantiles of each seed's stream, as integers of `bits` bits: the reference of all targets.

    A seed is 32 bits. What follows in the stream of one seed is `quantiles([seed], samples * latents)`.
    """
    a = (np.asarray(seeds, np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    b = np.full_like(a, SECOND)
    for i in range(ROUNDS):
        a = (_rotated(a, 24) + b) ^ np.uint32(i)
        b = _rotated(b, 3) ^ a
    drawn = np.empty((len(a), latents), np.int64)
    for i in range(latents):
        drawn[:, i] = (a + b) >> np.uint32(32 - bits)
        both = a ^ b
        a, b = _rotated(a, 26) ^ both ^ (both << np.uint32(9)), _rotated(both, 13)
    return drawn


def mixed_seeds(count: int) -> Int[np.ndarray, " n"]:
    """Return seeds to compare targets on: half of them counted from zero, then random ones."""
    seeds = np.random.default_rng(0).integers(0, 1 << 32, count)
    seeds[: (count + 1) // 2] = np.arange((count + 1) // 2)
    return seeds


def compared(
    draw: Callable[[Int[np.ndarray, " n"]], np.ndarray], latents: int, bits: int = U_BITS
) -> dict[str, Any]:
    """Compare what a target draws from the seeds 0 to 99,999 with the reference, and test that it is uniform.

    The test is chi-square, in 64 bins for each latent, on both sides: counts may be neither too uneven nor too even. Draws that
    are independent and uniform fail for any latent with a probability of at most `FALSE_ALARM`.
    """
    counts, different = np.zeros((latents, _BINS)), 0
    for seeds in np.array_split(np.arange(COUNTER_SEEDS), 10):
        drawn = draw(seeds).reshape(len(seeds), latents)
        different += int(np.sum(drawn != quantiles(seeds, latents, bits)))
        cells = (drawn * (_BINS / (1 << bits))).astype(np.int64) + _BINS * np.arange(latents)
        counts += np.bincount(cells.ravel(), minlength=counts.size).reshape(counts.shape)
    above = stats.chisquare(counts, axis=1).pvalue
    p_values = 2 * np.minimum(above, 1 - above)
    return {
        "quantile_mismatches": different,
        "uniformity_seeds": COUNTER_SEEDS,
        "uniformity_p_value": float(p_values.min()),
        "uniformity_failures": int(np.sum(p_values < FALSE_ALARM / latents)),
    }
