"""What is computed from parameters once and kept beside them: tables, rearranged weights.

Whatever is kept so is invisible to gradients, and noticed when the parameters have changed since:

- differentiated in the parameters, `follow` computes it anew, with its gradient, so that a loss of
  a loaded model, and every update of it, is what it would be without anything kept;
- otherwise it is taken as it is, with a warning number that is 0, or NaN if a checksum of the
  parameters is not what it was. Add it to a result, which is then NaN and never silently wrong.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32


class Derived(eqx.Module):
    """A value, and the checksum of what it was made from."""

    value: Any
    checksum: UInt32[Array, ""]


@eqx.filter_jit
def keep(make: Callable[[Any], Any], source: Any) -> Derived:
    """Compute `make(source)` once."""
    return Derived(make(source), _checksum(source))


def follow(make: Callable[[Any], Any], source: Any, kept: Derived) -> tuple[Any, Float[Array, ""]]:
    """Return `make(source)` and its warning number, without computing it where `kept` will do."""
    parameters, rest = eqx.partition(source, eqx.is_inexact_array)
    value, form = eqx.partition(kept.value, eqx.is_array)

    @jax.custom_jvp
    def known(parameters: Any, value: Any, checksum: Array) -> tuple[Any, Array]:
        return value, jnp.where(_checksum(parameters) == checksum, 0, jnp.nan)

    @known.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        def anew(parameters: Any) -> tuple[Any, Array]:
            made = make(eqx.combine(parameters, rest))
            return eqx.filter(made, eqx.is_array), jnp.zeros(())

        return jax.jvp(anew, primals[:1], tangents[:1])

    value, warning = known(parameters, value, kept.checksum)
    return eqx.combine(value, form), warning


def frozen(tree: Any) -> Any:
    """Return the same tree without gradients; leaves that are no arrays, such as functions, stay."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def _checksum(source: Any) -> UInt32[Array, ""]:
    """Of the bits of all parameters, in their order: sums of integers do not depend on who adds them."""
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(eqx.filter(source, eqx.is_inexact_array)):
        # As float32: the same numbers in double precision are the same parameters.
        leaf = jax.lax.stop_gradient(leaf).astype(jnp.float32)
        bits = jax.lax.bitcast_convert_type(leaf.reshape(-1), jnp.uint32)
        place = jnp.arange(bits.size, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
        total = total * jnp.uint32(31) + jnp.sum(_mixed(bits ^ place), dtype=jnp.uint32)
    return total


def _mixed(bits: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Spread every bit over all others, as MurmurHash3 ends.

    In a sum of products, what all numbers change alike, such as their signs, could cancel.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return bits ^ (bits >> 16)
