"""Every example of "Adding things" works as it is written, and every registry has one."""

import sys

import pytest

from support.pages import ROOT, blocks, run, sections

PAGE = "docs/how-to/adding.md"
PARTS = sections((ROOT / PAGE).read_text("utf8"))
SETUP = PARTS.pop("")


def registries():
    from kaem.bases import BASES
    from kaem.cli import VERBS
    from kaem.data import DATASETS
    from kaem.export import TARGETS
    from kaem.generators import GENERATORS
    from kaem.interpret.figures import FIGURES
    from kaem.layers import ENCODERS
    from kaem.learning import LEARNERS
    from kaem.metrics import METRICS
    from kaem.models import MODELS
    from kaem.observation import LENSES
    from kaem.posterior import SAMPLERS
    from kaem.priors import PRIORS, REFERENCES
    from kaem.settings import PRESETS

    return {
        "A basis": BASES,
        "A reference": REFERENCES,
        "A prior": PRIORS,
        "A generator": GENERATORS,
        "An encoder": ENCODERS,
        "A lens": LENSES,
        "A sampler": SAMPLERS,
        "A learner": LEARNERS,
        "A model": MODELS,
        "A metric": METRICS,
        "A figure": FIGURES,
        "An export target": TARGETS,
        "A dataset": DATASETS,
        "A preset": PRESETS,
        "A verb": VERBS,
    }


@pytest.fixture
def known():
    """The registries, restored afterwards."""
    found = registries()
    before = {kind: dict(registry) for kind, registry in found.items()}
    yield found
    for kind, registry in found.items():
        registry.clear()
        registry.update(before[kind])


def test_every_registry_has_a_section(known):
    assert list(PARTS) == list(known)


@pytest.mark.parametrize("kind", PARTS)
def test_example_works(kind, known, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = {name: set(registry) for name, registry in known.items()}
    namespace = {"__name__": "example"}
    text = (ROOT / PAGE).read_text("utf8")
    modules = set(sys.modules)
    for part in (SETUP, PARTS[kind]):
        start = text.count("\n", 0, text.index(part))
        for block in blocks(part):
            if block.language == "python":
                run(block._replace(line=block.line + start), PAGE, namespace)
    grown = {name for name, registry in known.items() if set(registry) - before[name]}
    assert grown == {kind}
    for path in tmp_path.glob("*.py"):  # modules that an example wrote
        if path.stem in set(sys.modules) - modules:
            del sys.modules[path.stem]
