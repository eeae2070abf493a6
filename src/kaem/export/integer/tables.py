r"""Inverse CDFs as tables of integers: 16 bits of $u$ in, a word out.

A latent is $z = \ell + (h - \ell)\,w/(2^b - 1)$ for a word $w$ of $b$ bits. The unit interval is cut into segments of
$2^s$ values of $u$, each with $2^e$ cells of its own. A cell is read

- to the nearest: its entry is the quantile at its middle;
- linearly: entries are the quantiles at its ends, and the remaining $s - e$ bits of $u$ interpolate.

*Uniform* addressing is one segment. *Tail-refined* addressing gives half of the entries to all of $u$ and a quarter to
each of the last 32nds, where quantiles move fastest.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...priors import AbstractPrior
from ...priors.inverse_transform import Table

U_BITS = 16
Addressing = Literal["uniform", "tails"]
_TAIL = 5  # a tail is 2^-5 of the unit interval


class Segment(NamedTuple):
    """Quantiles from `start` on, `1 << span` of them, in `1 << cells` cells whose words begin at `offset`."""

    start: int
    span: int
    cells: int
    offset: int

    @property
    def rest(self) -> int:
        """Bits of u within a cell."""
        return self.span - self.cells


@dataclass(frozen=True)
class Tables:
    """One row of words for each latent, in the order of the flattened latents."""

    words: Int[np.ndarray, "L E"]
    lo: Float[np.ndarray, " L"]
    hi: Float[np.ndarray, " L"]
    shape: tuple[int, ...]  # of one latent
    bits: int  # of a word
    interpolate: bool
    segments: tuple[Segment, ...]  # the first holds what no later one does

    @property
    def entries(self) -> int:
        """The number of words of one latent."""
        return self.words.shape[1]

    @property
    def bytes(self) -> int:
        return -(-self.words.size * self.bits // 8)

    def row(self, latent: int) -> "Tables":
        """Return the table of one latent."""
        part = slice(latent, latent + 1)
        return replace(self, words=self.words[part], lo=self.lo[part], hi=self.hi[part], shape=(1,))

    def look_up(self, u: Int[np.ndarray, "n L"]) -> Int[np.ndarray, "n L"]:
        """Return the words of quantiles u of 16 bits: what every target must equal bit for bit."""
        u = np.asarray(u, np.int64)
        row, found = np.arange(len(self.words)), np.zeros(u.shape, np.int64)
        words = self.words.astype(np.int64)
        for segment in self.segments:
            inside = (u >= segment.start) & (u < segment.start + (1 << segment.span))
            v, rest = np.where(inside, u - segment.start, 0), segment.rest
            entry = segment.offset + (v >> rest)
            read = words[row, entry]
            if self.interpolate and rest:
                within, right = v & ((1 << rest) - 1), words[row, entry + 1]
                read = (read * ((1 << rest) - within) + right * within + (1 << (rest - 1))) >> rest
            found = np.where(inside, read, found)
        return found

    def latents(self, words: Int[np.ndarray, "n L"]) -> Float[np.ndarray, "n L"]:
        """Return what words stand for."""
        return self.lo + (self.hi - self.lo) * words / ((1 << self.bits) - 1)


def _segments(entries: int, interpolate: bool, addressing: Addressing) -> tuple[Segment, ...]:
    bits, more = entries.bit_length() - 1, int(interpolate)
    if addressing == "uniform":
        return (Segment(0, U_BITS, bits, 0),)
    span, body = U_BITS - _TAIL, (1 << (bits - 1)) + more
    tail = (1 << (bits - 2)) + more
    return (
        Segment(0, U_BITS, bits - 1, 0),
        Segment(0, span, bits - 2, body),
        Segment((1 << U_BITS) - (1 << span), span, bits - 2, body + tail),
    )


def quantise_prior(
    prior: AbstractPrior,
    *,
    entries: int = 1024,
    bits: int = 16,
    interpolate: bool = True,
    addressing: Addressing = "uniform",
) -> Tables:
    """Return the tables of a prior: `entries` cells (a power of two) for each latent, words of `bits` bits."""
    most = 1 << (U_BITS if addressing == "uniform" else U_BITS - _TAIL + 2)
    if entries.bit_count() != 1 or not 8 <= entries <= most:
        raise ValueError(
            f"a table with {addressing} addressing has a power of two from 8 to {most} entries, got "
            f"{entries}."
        )
    if not 4 <= bits <= 16:
        raise ValueError(f"the words of a table have 4 to 16 bits, got {bits}.")
    segments = _segments(entries, interpolate, addressing)
    parts = [_quantiles(prior, segment, interpolate) for segment in segments]
    z = np.concatenate(parts, axis=-1)
    lo, hi = z.min(axis=1), z.max(axis=1)
    hi = np.maximum(hi, lo + 1e-6)
    words = np.round((z - lo[:, None]) / (hi - lo)[:, None] * ((1 << bits) - 1)).astype(np.int64)
    return Tables(words, lo, hi, tuple(prior.shape), bits, interpolate, segments)


def _quantiles(
    prior: AbstractPrior, segment: Segment, interpolate: bool
) -> Float[np.ndarray, "L E"]:
    """Return the entries of one segment, as latents."""
    cells = 1 << segment.cells
    scale = (1 << segment.span) / cells / (1 << U_BITS)
    middles = segment.start / (1 << U_BITS) + (np.arange(cells) + 0.5) * scale
    if not interpolate:
        return _inverse_cdf(prior, middles)
    ends = segment.start / (1 << U_BITS) + np.arange(cells + 1) * scale
    z, middle = _inverse_cdf(prior, ends), _inverse_cdf(prior, middles[[0, -1]])
    # The outermost cells reach to the ends of the domain, where hardly anything is: their chords go
    # through the median of the cell instead.
    if segment.start == 0:
        z[:, 0] = np.maximum(z[:, 0], 2 * middle[:, 0] - z[:, 1])
    if ends[-1] == 1:
        z[:, -1] = np.minimum(z[:, -1], 2 * middle[:, 1] - z[:, -2])
    return z


def _inverse_cdf(prior: AbstractPrior, u: Float[np.ndarray, " n"]) -> Float[np.ndarray, "L n"]:
    spread = jnp.broadcast_to(
        jnp.asarray(u, jnp.float32).reshape(-1, *(1 for _ in prior.shape)), (len(u), *prior.shape)
    )
    return np.array(jax.device_get(prior.inverse_cdf(spread)), np.float64).reshape(len(u), -1).T


def kolmogorov_smirnov(prior: AbstractPrior, tables: Tables) -> Float[np.ndarray, "..."]:
    r"""Return $\sup_z |F(z) - \hat F(z)|$ of each latent, exactly: all $2^{16}$ quantiles are read."""
    every, exact = np.arange(1 << U_BITS)[:, None], eqx.filter_jit(type(prior)._exact_table)(prior)
    found = np.empty(tables.shape)
    for i, place in enumerate(np.ndindex(*tables.shape)):
        row = tables.row(i)
        words, counts = np.unique(row.look_up(every), return_counts=True)
        reached = np.cumsum(counts) / (1 << U_BITS)
        z = np.resize(row.latents(words), 1 << U_BITS)  # one shape, one compilation
        true = np.asarray(_cdf(exact, place, jnp.asarray(z, jnp.float32)), np.float64)[: len(words)]
        before = np.concatenate([[0.0], reached[:-1]])
        found[place] = max(np.abs(reached - true).max(), np.abs(before - true).max())
    return found


@eqx.filter_jit
def _cdf(table: Table, place: Any, z: Float[Array, " n"]) -> Float[Array, " n"]:
    return jax.tree.map(lambda leaf: leaf[place], table).cdf(z)
