"""What `import kaem` offers."""

import pkgutil
import subprocess
import sys

import pytest

import kaem


def test_public_names():
    for name in kaem.__all__:
        assert getattr(kaem, name) is not None
    assert "KAEM" in dir(kaem)
    with pytest.raises(AttributeError, match="nothing"):
        _ = kaem.nothing


def test_every_submodule_is_an_attribute_in_a_fresh_process():
    names = [m.name for m in pkgutil.walk_packages(kaem.__path__, "kaem.")]
    names = [n for n in names if not n.startswith(("kaem.cli", "kaem.__main__", "kaem.presets"))]
    assert "kaem.interpret.closed_forms.search" in names
    code = f"""
import kaem
kaem.priors.Table
for name in {names!r}:
    found = kaem
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found.__name__ == name, name
try:
    kaem.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
