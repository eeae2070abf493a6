"""`kaem data`: what is there, whether it is whole, and how it would be read."""

import json
import re

from PIL import Image

from kaem.cli import main


def test_data_check_takes_the_settings_that_it_advises(tmp_path, capsys):
    for i, size in enumerate((5, 6)):
        Image.new("RGB", (size, size)).save(tmp_path / f"{i}.png")
    assert main(["data", "check", str(tmp_path)]) == 2
    advised = re.search(r"`(--set [^`]+)`", capsys.readouterr().out)[1].replace("=N", "=4")
    assert main(["data", "check", str(tmp_path), *advised.split()]) == 0
    shown = capsys.readouterr()
    assert "2 examples of shape (4, 4, 3)" in shown.out
    assert "note: 1 of 2 images" in shown.err
    more = ["--set", "data.limit=1", "--set", "data.channels=3"]
    assert main(["data", "check", str(tmp_path), *more]) == 0
    assert "1 examples of shape (5, 5, 3)" in capsys.readouterr().out
    for wrong in ("training.steps=3", "data.name=mnist5k", "data=3", "data.sise=3"):
        assert main(["data", "check", str(tmp_path), "--set", wrong]) == 2
        assert "kaem: " in capsys.readouterr().err


def test_data(capsys, tmp_path):
    assert main(["data", "list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["mnist5k"]["status"] == "embedded"
    assert listing["mnist"]["status"] == "absent"
    assert main(["data", "check", "mnist5k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mnist5k"]["status"] == "good"
    assert main(["data", "check", "mnist", "mnist5k", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["mnist"]["status"], found["mnist5k"]["status"]) == ("bad", "good")
    assert main(["data", "fetch", "mnits"]) == 2
    assert "known: mnist5k" in capsys.readouterr().err
