"""`kaem info` and `kaem --help`."""

import json
import re
import shutil
import subprocess
import sys

from kaem.cli import main


def test_help_needs_no_jax_and_is_instant():
    code = "import sys; from kaem.cli import parser; parser().format_help(); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_info_names_the_model(trained, tmp_path, capsys):
    assert main(["info", str(trained)]) == 0
    size = (trained / "model.safetensors").stat().st_size
    expected = rf"model +{trained}/model\.safetensors, {size / 1e6:.1f} MB\n"
    assert re.search(expected, capsys.readouterr().out)
    shutil.copy(trained / "config.json", tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    assert re.search(r"model +none yet\n", capsys.readouterr().out)


def test_info(trained, capsys):
    assert main(["info", "--json"]) == 0
    assert "jax" in json.loads(capsys.readouterr().out)["versions"]
    assert main(["info", str(trained), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["progress"] == "step 20 of 20"
    assert info["checkpoints"] == [10, 20]
    assert main(["info", "nowhere"]) == 2
