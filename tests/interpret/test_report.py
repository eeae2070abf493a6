"""`kaem plot` and `kaem report` as a user meets them; the report in a real browser."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from kaem import UserError
from kaem.cli import main
from kaem.data import load
from kaem.interpret import report as writing
from kaem.interpret.figures import FIGURES, Figure
from kaem.interpret.plotting import plot
from kaem.interpret.report import report, training_seconds
from kaem.page import Markup, table
from kaem.runs import RunFolder
from support.browser import chromium
from support.pictures import assert_drawn
from support.registries import leave_only


def test_the_report_opens_in_a_browser(tiny_run, tmp_path):
    """Without an error or a request, on a desk and on a phone, and on paper."""
    page = tiny_run / "report.html"
    assert page.stat().st_size < 5_000_000  # it is sent by mail
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


@pytest.fixture
def no_search(monkeypatch):
    """Reports without closed forms, the search for which takes most of their time."""
    monkeypatch.setattr(writing, "fit_places", lambda *_: [])


def test_the_report_says_what_is_known(tiny_run, tmp_path, capsys, no_search):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
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
    assert "digits-kan, 20 updates" in text
    assert "5 x 2 rbf densities" in text
    assert "kaem train digits-kan --config run/config.json --out run-again" in text
    # The command is one that repeats the run: same settings, same bytes.
    again = ["train", "digits-kan", "--config", str(run / "config.json"), "--no-report"]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    files = [(folder / "model.safetensors").read_bytes() for folder in (run, tmp_path / "again")]
    assert files[0] == files[1]


def test_a_report_without_its_data_says_what_is_missing(tiny_run, tmp_path, no_search):
    run = tmp_path / "moved"
    shutil.copytree(tiny_run, run)
    record = json.loads((run / "config.json").read_text())
    record["settings"]["data"]["name"] = str(tmp_path / "gone.npz")
    (run / "config.json").write_text(json.dumps(record))
    said = []
    files = report(RunFolder.open(run), say=said.append)
    names = {path.name for path in files}
    assert "reconstructions.png" not in names
    assert {"densities.png", "traversal.png", "report.html"} <= names
    assert "No reconstructions" in files[-1].read_text()
    assert any("densities" in line for line in said)


@pytest.mark.parametrize(
    "damaged",
    [
        '{"details": {"fid": {"value": 1%s}}}' % ("0" * 399),
        "{",
        '{"details": {"fid": []}}',
        '{"details": {"fid": {"value": 1, "interval": [1]}}}',
    ],
)
def test_a_report_goes_on_without_damaged_metrics(tiny_run, tmp_path, monkeypatch, damaged):
    run, said = tmp_path / "run", []
    shutil.copytree(tiny_run, run)
    (run / "metrics.json").write_text(damaged)
    leave_only(monkeypatch, FIGURES, "training")
    page = report(RunFolder.open(run), say=said.append)[-1].read_text()
    assert "left out" in said[0]  # before anything is drawn
    assert any("training.png" in line for line in said)
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
        "learner.samples=16",
        "training.batch_size=16",
    ]
    every = ["training.log_every=5", "training.checkpoint_every=10", "training.sample_every=5"]
    sets = [a for s in [*sets, *every] for a in ("--set", s)]
    out = tmp_path / "run"
    assert (
        main(["train", str(tmp_path / "six.npy"), "--steps", "10", "--out", str(out), *sets]) == 0
    )
    drawn = {path.name for path in (out / "figures").iterdir()}
    assert drawn == {"influence.png", "densities.png", "training.png"}
    assert main(["plot", str(out), "traversal"]) == 2


def test_plots_show_what_was_asked_for(tiny_run, tmp_path, monkeypatch):
    """Through the command line, with what the figures were given caught on the way."""
    shown = {}
    for name, entry in list(FIGURES.items()):

        def caught(gallery, path, name=name, entry=entry):
            shown[name] = entry.draw(gallery, path)

        monkeypatch.setitem(FIGURES, name, dataclasses.replace(entry, draw=caught))
    out = ["-o", str(tmp_path)]
    latents = ["--latent", "3,1", "--latent", "5,2", "--latent", "3,1"]  # once, though named twice
    assert (
        main(["plot", str(tiny_run), "traversal,densities", *latents, "--points", "4", *out]) == 0
    )
    assert [t.curve.place for t in shown["traversal"]] == [(2, 0), (4, 1)]
    assert [len(t.images) for t in shown["traversal"]] == [4, 4]
    assert [c.place for c in shown["densities"]] == [(2, 0), (4, 1)]
    ends = ["--between", "data", "--example", "7", "--example", "400"]
    assert main(["plot", str(tiny_run), "interpolation,reconstructions", *ends, *out]) == 0
    digits = load("mnist5k", size=8)[:500] / 255
    np.testing.assert_allclose(shown["reconstructions"].x, digits[[7, 400]], atol=1e-6)
    made = shown["interpolation"].slerp.images[[0, -1]]
    other = shown["interpolation"].quantile.images[[0, -1]]
    np.testing.assert_allclose(made, other, atol=1e-5)
    assert main(["plot", str(tiny_run), "evolution", "--format", "webp", *out]) == 0
    assert shown["evolution"] == [5, 10, 15, 20]
    with Image.open(tmp_path / "evolution.webp") as animation:
        assert animation.n_frames == 4
    assert main(["plot", str(tiny_run), "training", "samples", "--format", "svg", *out]) == 0
    assert_drawn(tmp_path / "training.svg", 7.2)
    np.testing.assert_array_equal(shown["training"]["step"], [5, 10, 15, 20])
    # Samples are pixels, whatever is asked of the others: 10 x 10 images of 8 x 8 in frames of 2.
    with Image.open(tmp_path / "samples.png") as sheet:
        small = np.asarray(sheet.resize((102, 102), Image.Resampling.NEAREST))
    tiles = small[2:].reshape(10, 10, 102)[:, :8, 2:].reshape(10, 8, 10, 10)[..., :8]
    expected = shown["samples"].reshape(10, 10, 8, 8).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(tiles / 255, expected, atol=0.003)


def test_a_figure_is_one_entry(tiny_run, tmp_path, monkeypatch, capsys):
    """One that somebody else registers is in the help, in `plot all` and in the report."""
    calls = []

    def draw(gallery, path):
        calls.append((path.name, gallery.count, gallery.model.data_shape))
        Image.new("L", (120, 40), 128).save(path)

    def refuses(gallery, path):
        raise UserError("of nothing")

    leave_only(monkeypatch, FIGURES)
    mandala = {"section": "Mandalas", "options": ("count",), "formats": ("png",)}
    monkeypatch.setitem(FIGURES, "mandala", Figure("circles", draw, caption="Round", **mandala))
    monkeypatch.setitem(FIGURES, "nothing", Figure("never drawn", refuses))
    hidden = Figure("not here", draw, caption="Hidden", belongs=lambda gallery: False)
    monkeypatch.setitem(FIGURES, "hidden", hidden)
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    text = capsys.readouterr().out
    assert "mandala           circles" in text
    assert "png; heeds --count" in text
    shutil.copytree(tiny_run, tmp_path / "run")
    run, told = RunFolder(tmp_path / "run"), []
    files = plot(run, "all", folder=tmp_path, count=3, say=told.append)
    assert [path.name for path in files] == ["mandala.png", "hidden.png"]
    assert calls[0] == ("mandala.png", 3, (8, 8, 1))
    assert told == ["no nothing: of nothing"]
    with pytest.raises(UserError, match="of nothing"):
        plot(run, "nothing", folder=tmp_path)
    with pytest.raises(UserError, match="--count is for mandala; it would change nothing about"):
        plot(run, ["nothing"], count=3)
    *drawn, page = report(run)
    assert drawn == [run.figures / "mandala.png"]
    assert "<h2>Mandalas</h2>" in page.read_text()
    assert "<figcaption>Round</figcaption>" in page.read_text()
    assert "Hidden" not in page.read_text()
    with pytest.raises(ValueError, match="options"):
        Figure("wrong", draw, options=("colour",))


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
def test_mistakes_are_explained_and_write_nothing(tiny_run, tmp_path, capsys, arguments, message):
    assert main(["plot", str(tiny_run), *arguments, "-o", str(tmp_path / "out")]) == 2
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
        ("history.jsonl", '{"step": 1, "seconds": 1%s}\n{"step": 2}\n' % ("0" * 399), "line 1"),
        ("history.jsonl", '{"step": 1e400}\n{"step": 2}\n', "line 1"),
        ("config.json", '{"devices": 1%s}' % ("0" * 399), "has 400 digits"),
    ],
)
def test_damaged_runs_are_named(tiny_run, tmp_path, capsys, name, content, message):
    run = tmp_path / "damaged"
    run.mkdir()
    shutil.copy(tiny_run / "config.json", run)
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    command = ["plot", str(run), "training"] if name == "history.jsonl" else ["info", str(run)]
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_a_file_is_no_folder_for_figures(tiny_run, tmp_path):
    (tmp_path / "file").touch()
    assert main(["plot", str(tiny_run), "training", "-o", str(tmp_path / "file")]) == 2


def test_the_clock_of_a_resumed_run_counts_all_sessions():
    seconds = [10, 20, 35, 5, 9, 2]
    assert training_seconds([{"seconds": s} for s in seconds]) == 35 + 9 + 2
    assert training_seconds([]) == 0


def test_tables_escape_what_is_no_markup():
    made = table(["a"], [["<b>", Markup("<i>x</i>"), "<u>"]])
    assert "&lt;b&gt;" in made
    assert "<i>x</i>" in made
    assert "&lt;u&gt;" in made
