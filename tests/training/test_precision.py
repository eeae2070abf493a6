"""Updates whose generator computes in bfloat16: nearly the same model, kept and saved in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaem
from kaem.generators import CNN, KAN, Half
from kaem.settings import Settings
from support.chains import coloured
from support.encoders import ENCODED


@pytest.mark.parametrize(("make", "options"), [(KAN, {}), (CNN, {"widths": (8,)})])
def test_every_product_of_the_generator_is_in_bfloat16(make, options):
    generator = make(4, (8, 8, 1), key=jax.random.key(0), **options)
    z = jax.random.normal(jax.random.key(1), (3, 4))
    program = jax.make_jaxpr(Half(generator).decoder())(z)
    kinds = [
        {str(v.aval.dtype) for v in [*equation.invars, *equation.outvars]}
        for equation in _equations(program.jaxpr)
        if equation.primitive.name in ("dot_general", "conv_general_dilated")
    ]
    assert kinds
    assert all(kind == {"bfloat16"} for kind in kinds)
    made = Half(generator).decoder()(z)
    assert made.dtype == jnp.float32
    # Eight bits of mantissa, and a few layers.
    np.testing.assert_allclose(made, generator.decoder()(z), atol=0.02)
    assert np.abs(made - generator.decoder()(z)).max() > 0


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def test_it_learns_what_float32_does_and_keeps_float32():
    settings = Settings.from_dict(ENCODED)
    x = coloured()
    found = {}
    for precision in ("float32", "bfloat16"):
        model = settings.model(x.shape[1:])
        found[precision] = kaem.fit(
            model,
            x,
            key=jax.random.key(0),
            steps=60,
            batch_size=8,
            log_every=20,
            learner=settings.learner(),
            precision=precision,
        )
    model, _ = found["bfloat16"]
    leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    assert not isinstance(model.generator, Half)
    losses = {name: [record["loss"] for record in h] for name, (_, h) in found.items()}
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.01)
    assert losses["bfloat16"] != losses["float32"]


def test_what_has_no_generator_is_refused(tmp_path):
    options = {"steps": 1, "set": {"training": {"precision": "bfloat16"}, "data": {"limit": 200}}}
    with pytest.raises(kaem.UserError, match="DDPM has no generator"):
        kaem.train("ddpm-digits", tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
    options["set"]["training"]["precision"] = "float8"
    with pytest.raises(kaem.UserError, match="float32 or bfloat16, got 'float8'"):
        kaem.train("digits-kan", tmp_path / "run", **options)
