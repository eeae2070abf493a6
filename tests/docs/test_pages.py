"""What the pages show works: Python is run where it takes seconds, commands have the options they use."""

import re
import shlex
import shutil
from functools import partial

import pytest

from support.pages import ROOT, blocks, commands, name_of, pages, run

PAGES = {name_of(page): page.read_text("utf8") for page in pages()}
PYTHON = {
    name: [b for b in blocks(text) if b.language == "python"]
    for name, text in PAGES.items()
    if name != "docs/how-to/adding.md"  # test_adding.py
}
RUN = {
    name: todo
    for name, found in PYTHON.items()
    if (todo := [b for b in found if not b.note.startswith("not executed")])
}
COMMANDS = sorted({(name, line) for name, text in PAGES.items() for line in commands(text)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return runs that were hardly trained, by the names that pages give them, made when asked for."""
    import kaem

    presets = {"demo": "quickstart", "digits-kan": "digits-kan"}
    folder = tmp_path_factory.mktemp("runs")

    def run(name):
        if not (folder / name).exists():
            kaem.train(presets[name], folder / name, steps=2)
        return folder / name

    return {name: partial(run, name) for name in presets}


SLOW = {"docs/how-to/compare.md"}  # three rivals to compile


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RUN]
)
def test_python_of_a_page_runs(name, trained, tmp_path):
    for run_name, made in trained.items():
        if any(f"runs/{run_name}" in block.code for block in RUN[name]):
            shutil.copytree(made(), tmp_path / "runs" / run_name)
    namespace = {"__name__": "example"}
    for block in RUN[name]:
        if block.note.startswith("shortened"):
            block = block._replace(code=re.sub(r"steps=[\d_]+", "steps=2", block.code))
        run(block, name, namespace)


@pytest.mark.parametrize("name", PYTHON)
def test_python_of_a_page_compiles(name):
    for block in PYTHON[name]:
        compile(block.code, f"{name}:{block.line}", "exec")


def test_what_is_not_run_as_it_is_says_why():
    notes = [b.note for found in PYTHON.values() for b in found if b.note]
    assert all(re.fullmatch(r"not executed: .+|shortened: steps", note) for note in notes)


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_command_parses(name, line):
    from kaem.cli import parser

    words = shlex.split(line, comments=True)
    for piece in " ".join(map(shlex.quote, words)).split(" '&&' "):
        words = shlex.split(piece)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words[0] == "kaem" and words[1:] not in (["--help"], ["--version"]):
            options = parser().parse_args(words[1:])
            _check_settings(options)


def _check_settings(options):
    """A preset with these `--set` is one that exists, whatever the data."""
    from kaem.runs import settings_of
    from kaem.settings import PRESETS

    if options.verb == "train" and not (options.prior_from or options.config):
        if options.what in PRESETS:
            settings_of(options.what, set=options.set, data=options.data)
        elif not options.resume:
            assert re.search(r"[./A-Z]", options.what), f"{options.what} is no preset, nor a path"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    here = (ROOT / name).parent
    for target in re.findall(
        r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", PAGES[name], flags=re.S)
    ):
        if not target.startswith(("http", "mailto:")):
            assert (here / target).exists(), target
