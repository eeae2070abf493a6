"""What the pages show works: Python is run where it takes seconds, commands have the options they use."""

import re
import shlex
import shutil

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
def demo(tmp_path_factory):
    """A run of the quickstart that was hardly trained, as `runs/demo`."""
    import kaem

    folder = tmp_path_factory.mktemp("demo") / "demo"
    kaem.train("quickstart", folder, steps=2)
    return folder


SLOW = {"docs/how-to/compare.md"}  # three rivals to compile


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RUN]
)
def test_python_of_a_page_runs(name, demo, tmp_path):
    if any("runs/demo" in block.code for block in RUN[name]):
        shutil.copytree(demo, tmp_path / "runs" / "demo")
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

    if (
        options.verb == "train"
        and options.what in PRESETS
        and not (options.prior_from or options.config)
    ):
        settings_of(options.what, set=options.set, data=options.data)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    here = (ROOT / name).parent
    for target in re.findall(
        r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", PAGES[name], flags=re.S)
    ):
        if not target.startswith(("http", "mailto:")):
            assert (here / target).exists(), target
