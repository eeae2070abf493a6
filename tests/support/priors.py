"""Priors with energies of visible size, and without any."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kaem.priors import UnivariatePrior


def flat_prior(reference="uniform"):
    prior = UnivariatePrior(1, 4, key=jax.random.key(0), reference=reference, activation=None)
    zero = eqx.tree_at(lambda p: p.energies.basis.coefficients, prior, replace_fn=jnp.zeros_like)
    slope = lambda z: jnp.asarray(np.linspace(-1, 1, 21)[None, None] * z, jnp.float32)  # noqa: E731
    return eqx.tree_at(
        lambda p: p.energies.basis.coefficients, zero, jnp.tile(slope(0.4), (4, 1, 1))
    )


def prior_with(basis="rbf", reference="gaussian", strength=1.0, seed=0, **kwargs):
    """3 x 2 densities with energies of visible size."""
    key, value_key = jax.random.split(jax.random.key(seed))
    prior = UnivariatePrior(2, 3, key=key, basis=basis, reference=reference, **kwargs)
    made = prior.energies.basis
    name = "coefficients" if hasattr(made, "coefficients") else "weight"
    values = strength * jax.random.normal(value_key, getattr(made, name).shape)
    if basis in ("chebyshev", "fourier"):  # global functions: let high orders fade
        values = values / (1 + jnp.arange(values.shape[-1]) % 20)
    return eqx.tree_at(lambda p: getattr(p.energies.basis, name), prior, values)
