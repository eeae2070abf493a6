"""`kaem plot` and `kaem report` as a user meets them; the report in a real browser."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from browser import chromium
from kaem.cli import main
from kaem.cli import plot as plot_command
from kaem.interpret import gallery
from kaem.interpret.facts import training_seconds
from kaem.interpret.page import Markup, table
from kaem.interpret.report import finish
from kaem.training.run import Run

SETTINGS = [
    "data.limit=500",
    "posterior.samples=64",
    "training.batch_size=32",
    "training.log_every=5",
    "training.checkpoint_every=10",
    "training.sample_every=5",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The quickstart's model after a few updates, with the report that training leaves."""
    out = tmp_path_factory.mktemp("reports") / "quick"
    sets = [a for s in SETTINGS for a in ("--set", s)]
    assert main(["train", "quickstart", "--steps", "20", "--out", str(out), *sets]) == 0
    return out


def test_the_report_opens_in_a_browser(trained, tmp_path):
    """Without an error or a request, on a desk and on a phone, and on paper."""
    page = trained / "report.html"
    assert page.stat().st_size < 5_000_000
    with chromium(tmp_path / "profile") as browser:
        for width, mobile in ((1200, False), (390, True)):
            browser.open(page.as_uri(), width, 844, mobile)
            assert browser.problems() == []
            assert browser.requests() == [page.as_uri()]
            assert browser.run("document.documentElement.scrollWidth") <= width
            images = "[...document.images]"
            assert browser.run(f"{images}.length") == 7
            assert browser.run(f"{images}.every(i => i.complete && i.naturalWidth > 100)")
            assert browser.run(f"{images}.every(i => i.alt.length > 10)")
        titles = browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert titles == [
            "Samples", "Reconstructions", "What the prior learned", "Closed forms", "Training",
            "Measured", "To repeat it",
        ]  # fmt: skip
        formulas = browser.run("document.querySelectorAll('math').length")
        assert formulas == 10  # Q x P = 5 x 2 densities
        heights = browser.run(
            "[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect().height)"
        )
        assert min(heights) > 5
        browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_the_report_says_what_is_known(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    entry = {"value": 12.5, "error": 0.25, "interval": [12.0, 13.0], "generated": {"n": 400}}
    odd = {"value": None, "why": "too few <samples>"}
    details = {"details": {"fid_infinity": entry, "kid": odd}}
    (run / "metrics.json").write_text(json.dumps(details))
    elsewhere = tmp_path / "page.html"
    assert main(["report", str(run), "-o", str(elsewhere), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files[-1] == str(elsewhere)
    text = re.sub(r"<[^>]+>", " ", elsewhere.read_text())
    assert "12.5 ± 0.25" in text
    assert "12 to 13" in text
    assert "too few &lt;samples&gt;" in text
    assert "quickstart, 20 updates" in text
    assert "5 x 2 rbf densities" in text
    assert "kaem train quickstart --config run/config.json --out run-again" in text
    # The command is one that repeats the run: same settings, same bytes.
    again = ["train", "quickstart", "--config", str(run / "config.json"), "--no-report"]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    files = [(folder / "model.safetensors").read_bytes() for folder in (run, tmp_path / "again")]
    assert files[0] == files[1]


def test_a_report_without_its_data_says_what_is_missing(trained, tmp_path):
    run = tmp_path / "moved"
    shutil.copytree(trained, run)
    record = json.loads((run / "config.json").read_text())
    record["settings"]["data"]["name"] = str(tmp_path / "gone.npz")
    (run / "config.json").write_text(json.dumps(record))
    said = []
    files = finish(Run.open(run), said.append)
    names = {path.name for path in files}
    assert "reconstructions.png" not in names
    assert {"densities.png", "traversal.png", "report.html"} <= names
    assert "No reconstructions" in files[-1].read_text()
    assert any("densities" in line for line in said)


@pytest.mark.parametrize(
    "damaged",
    ["{", '{"details": {"fid": []}}', '{"details": {"fid": {"value": 1, "interval": [1]}}}'],
)
def test_a_report_goes_on_without_damaged_metrics(trained, tmp_path, monkeypatch, damaged):
    run, said = tmp_path / "run", []
    shutil.copytree(trained, run)
    (run / "metrics.json").write_text(damaged)
    monkeypatch.setattr("kaem.interpret.report.fit_places", lambda *_: [])
    page = finish(Run.open(run), said.append)[-1].read_text()
    assert "left out" in said[0]  # before anything is drawn
    assert "Left out: " in page
    assert "metrics.json" in page
    assert (run / "metrics.json").read_text() == damaged


@pytest.mark.slow
def test_data_that_is_no_image_has_a_report_of_its_densities(tmp_path):
    x = np.random.default_rng(0).random((64, 6)).astype(np.float32)
    np.save(tmp_path / "six.npy", x)
    sets = [
        "prior.latents=1",
        "generator.depth=1",
        "posterior.samples=16",
        "training.batch_size=16",
    ]
    sets = [a for s in [*sets, *SETTINGS[-3:]] for a in ("--set", s)]
    out = tmp_path / "run"
    assert (
        main(["train", str(tmp_path / "six.npy"), "--steps", "10", "--out", str(out), *sets]) == 0
    )
    drawn = {path.name for path in (out / "figures").iterdir()}
    assert drawn == {"influence.png", "densities.png", "training.png"}
    assert main(["plot", str(out), "traversal"]) == 2


def test_every_figure_of_the_command_is_in_the_gallery():
    assert tuple(gallery.FIGURES) == plot_command.FIGURES


def test_plots_show_what_was_asked_for(trained, tmp_path, monkeypatch):
    """Through the command line, with what the figures were given caught on the way."""
    shown = {}
    for name, draw in list(gallery.FIGURES.items()):

        def caught(self, path, choices, name=name, draw=draw):
            shown[name] = draw(self, path, choices)

        monkeypatch.setitem(gallery.FIGURES, name, caught)
    out = ["-o", str(tmp_path)]
    latents = ["--latent", "3,1", "--latent", "5,2"]
    assert main(["plot", str(trained), "traversal,densities", *latents, "--points", "4", *out]) == 0
    assert [t.curve.place for t in shown["traversal"]] == [(2, 0), (4, 1)]
    assert [len(t.images) for t in shown["traversal"]] == [4, 4]
    assert [c.place for c in shown["densities"]] == [(2, 0), (4, 1)]
    ends = ["--between", "data", "--example", "7", "--example", "400"]
    assert main(["plot", str(trained), "interpolation,reconstructions", *ends, *out]) == 0
    from kaem.data import load

    digits = load("mnist5k")[:500] / 255
    np.testing.assert_allclose(shown["reconstructions"].x, digits[[7, 400]], atol=1e-6)
    made = shown["interpolation"].slerp.images[[0, -1]]
    other = shown["interpolation"].quantile.images[[0, -1]]
    np.testing.assert_allclose(made, other, atol=1e-5)
    assert main(["plot", str(trained), "evolution", "--format", "webp", *out]) == 0
    assert shown["evolution"] == [5, 10, 15, 20]
    with Image.open(tmp_path / "evolution.webp") as animation:
        assert animation.n_frames == 4
    assert main(["plot", str(trained), "training", "--format", "svg", *out]) == 0
    assert (tmp_path / "training.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mandala"], "unknown figure"),
        (["traversal", "--latent", "6,1"], "no latent 6,1"),
        (["traversal", "--latent", "3"], "--latent Q,P"),
        (["traversal", "--latent", "x"], "Q or Q,P"),
        (["interpolation", "--between", "data", "--example", "1"], "two ends"),
        (["reconstructions", "--example", "500"], "no example 500"),
        (["temperatures"], "has no temperatures"),
        (["evolution", "--format", "svg"], "gif or webp"),
        (["densities", "--format", "gif"], "png or svg"),
        (["traversal", "--points", "1"], "at least 2"),
        (["densities", "--count", "0"], "at least 1"),
        (["reconstructions", "--data", "nowhere.npz"], "nowhere.npz"),
        (["densities", "--data", "nowhere.npz"], "nowhere.npz"),
        (["traversal", "--points", "5000"], "at most 100"),
        (["training", "--latent", "3,1"], "would change nothing"),
        (["interpolation", "--example", "3"], "--between data"),
        (["training", "--seed", "99999999999999999999"], "a seed is"),
        ([""], "no figure was named"),
    ],
)
def test_mistakes_are_explained_and_write_nothing(trained, tmp_path, capsys, arguments, message):
    assert main(["plot", str(trained), *arguments, "-o", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr().err
    assert message in captured
    assert "Traceback" not in captured
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{}", "has no 'what'"),
        ("history.jsonl", '[1, 2]\n{"step": 1, "seconds": 1}\n', "line 1"),
        ("history.jsonl", '{"step": 1, "seconds": "x"}\n{"step": 2, "seconds": 2}\n', "line 1"),
        ("history.jsonl", b"\xff\xfe\n\xff\n", "line 1"),
        ("history.jsonl", "5\n5\n", "line 1"),
        ("history.jsonl", "[" * 200_000 + "\n5\n", "line 1"),
        ("config.json", "[" * 200_000, "cannot be read"),
    ],
)
def test_damaged_runs_are_named(trained, tmp_path, capsys, name, content, message):
    run = tmp_path / "damaged"
    run.mkdir()
    shutil.copy(trained / "config.json", run)
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    command = ["plot", str(run), "training"] if name == "history.jsonl" else ["info", str(run)]
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_latents_are_shown_once(trained, tmp_path):
    twice = ["--latent", "3,1", "--latent", "3,1", "-o", str(tmp_path)]
    assert main(["plot", str(trained), "densities", *twice]) == 0
    (tmp_path / "file").touch()
    assert main(["plot", str(trained), "training", "-o", str(tmp_path / "file")]) == 2


def test_the_clock_of_a_resumed_run_counts_all_sessions():
    seconds = [10, 20, 35, 5, 9, 2]
    assert training_seconds([{"seconds": s} for s in seconds]) == 35 + 9 + 2
    assert training_seconds([]) == 0


def test_tables_escape_what_is_no_markup():
    made = table(["a"], [["<b>", Markup("<i>x</i>"), "<u>"]])
    assert "&lt;b&gt;" in made
    assert "<i>x</i>" in made
    assert "&lt;u&gt;" in made
