"""Refits on new grids: the functions stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaem.bases import BASES, Functions, LinearBasis

LINEAR = [name for name, cls in BASES.items() if issubclass(cls, LinearBasis)]


@pytest.mark.parametrize("basis", LINEAR)
def test_a_refit_changes_no_function_by_more_than_a_hundredth(basis):
    functions = Functions.init(3, 4, key=jax.random.key(0), basis=basis, size=8, amplitude=20.0)
    x = jnp.asarray(np.random.default_rng(0).normal(0, 0.4, (3, 2000)), jnp.float32)
    moved = functions.regrid(x)
    nodes = jnp.quantile(x, jnp.linspace(0.01, 0.99, 200), axis=1).T
    old, new = functions.basis.curves(nodes), moved.basis.curves(nodes)
    spread = jnp.std(old, axis=-1)
    assert float(jnp.max(jnp.sqrt(jnp.mean((new - old) ** 2, axis=-1)) / spread)) < 0.03
    assert float(jnp.sqrt(jnp.mean((new - old) ** 2) / jnp.mean(spread**2))) < 0.012
