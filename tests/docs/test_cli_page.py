"""The page of the command line has every verb, and every option of every verb."""

import argparse
import re

import pytest

from kaem.cli import VERBS, parser
from support.pages import ROOT, blocks, sections

PAGE = sections((ROOT / "docs/reference/cli.md").read_text("utf8"))


def flags(of):
    """The long options of a verb, of its actions too; short ones where there is no long one."""
    found = set()
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for sub in action.choices.values() for flag in flags(sub)}
        names = [name for name in action.option_strings if name != "-h"]
        found |= {name for name in names if name.startswith("--")} or set(names)
    return found - {"--help"}


def test_every_verb_has_a_section():
    assert set(VERBS) <= set(PAGE)


@pytest.mark.parametrize("verb", VERBS)
def test_synopsis_has_the_options_of_the_verb(verb):
    top = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = flags(top.choices[verb])
    synopsis = next(b.code for b in blocks(PAGE[verb]) if b.language == "text")
    shown = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", synopsis))
    shown = {{"-o": "--output"}.get(flag, flag) for flag in shown}
    assert shown == known
