"""The tables of settings say what the constructors say: every name, every default, nothing else."""

import re

import pytest

from kaem.models import MODELS
from kaem.settings import Data, Training
from kaem.settings.schema import REQUIRED, fields
from kaem.settings.settings import PARTS, allowed
from kaem.training import Adam, Augmentation, Grid, Upkeep
from support.pages import ROOT

TEXT = (ROOT / "docs/reference/settings.md").read_text("utf8")
PLAIN = {
    "data": Data,
    "augmentation": Augmentation,
    "training": Training,
    "optimiser": Adam,
    "grid": Grid,
    "upkeep": Upkeep,
}
TABLES = {
    (m[1], m[2]): m[3]
    for m in re.finditer(r"<!-- settings: (\w+) ?([\w-]*) -->\n\n((?:\|[^\n]*\n)+)", TEXT)
}
KINDS = [(s, kind) for s, registry in {"model": MODELS, **PARTS}.items() for kind in registry]


def shown(value) -> str:
    """A default as the tables write it."""
    if value is REQUIRED:
        return "required"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)


def known(section, kind):
    return allowed(section, kind) if kind else fields(PLAIN[section], section)


def test_every_section_and_kind_has_a_table():
    empty = {(s, kind) for s, kind in KINDS if not known(s, kind)}
    assert set(TABLES) == ({*KINDS} - empty) | {(name, "") for name in PLAIN}


@pytest.mark.parametrize("table", TABLES, ids="-".join)
def test_table_shows_names_and_defaults(table):
    section, kind = table
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in TABLES[table].splitlines()]
    written = {name.strip("`"): default for name, default, _ in rows[2:]}
    expected = {f"{section}.{n}": shown(f.default) for n, f in known(section, kind).items()}
    assert written == expected
