"""The rivals on the trainer, the command line and the comparison that everything shares."""

import json
import shutil

import equinox as eqx
import jax
import numpy as np
import pytest

import kaem
from kaem.cli import main
from kaem.runs.comparing import rows
from kaem.runs.folder import RunFolder
from kaem.settings import Settings, read_preset

KINDS = {"vae": "VAE", "neural-ebm": "NeuralEBM", "ddpm": "DDPM"}
# Small enough to compile and run in seconds; what is tested is the machinery.
SMALL = {
    "vae": ["generator.widths=[8]", "encoder.widths=[4,8]", "prior.coordinates=4"],
    "neural-ebm": [
        "generator.widths=[8]",
        "prior.widths=[8]",
        "prior.steps=5",
        "learner.steps=3",
        "prior.coordinates=4",
    ],
    "ddpm": ["model.channels=[4,8]", "model.time_dim=8", "model.sampling_steps=3"],
}
TRAINING = ["data.limit=60", "training.batch_size=20", "training.log_every=2"]
TRAINING += ["training.checkpoint_every=4", "training.sample_every=4"]


def train(kind, out, *more):
    settings = [part for s in [*SMALL[kind], *TRAINING] for part in ("--set", s)]
    return main(["train", f"{kind}-digits", "--out", str(out), "--steps", "8", *settings, *more])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rivals")
    for kind in KINDS:
        more = ["--no-report"] if kind == "neural-ebm" else []  # its chains take long to compile
        assert train(kind, folder / kind, *more) == 0
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_what_every_run_has(runs, kind, capsys):
    run = runs / kind
    for file in ("config.json", "model.safetensors", "history.jsonl"):
        assert (run / file).is_file()
    if kind != "neural-ebm":
        drawn = {"samples", "training"} | ({"reconstructions"} if kind == "vae" else set())
        assert {p.stem for p in (run / "figures").iterdir()} == drawn
        assert KINDS[kind] in (run / "report.html").read_text()
    assert (run / "samples" / "00000008.png").is_file()
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [record["step"] for record in history] == [2, 4, 6, 8]
    assert all(np.isfinite(list(record.values())).all() for record in history)
    model = kaem.load(run)
    assert type(model).__name__ == KINDS[kind]
    assert main(["sample", str(run), "-n", "3", "-o", str(run / "x.npz")]) == 0
    with np.load(run / "x.npz") as file:
        assert file["x"].shape == (3, 28, 28, 1)
        assert 0 <= file["x"].min() <= file["x"].max() <= 1
    assert main(["info", str(run)]) == 0
    capsys.readouterr()
    assert main(["plot", str(run), "densities"]) == 2
    assert (
        "whose prior is a product of learned one-dimensional densities" in capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_is_exact(runs, kind, tmp_path, capsys):
    """Stopped after 4 of 8 updates and continued: the same bytes as never stopped."""
    halved = tmp_path / "halved"
    shutil.copytree(runs / kind, halved)
    # Back to the checkpoint of step 4, as a kill would leave it.
    shutil.rmtree(halved / "checkpoints" / "00000008")
    (halved / "model.safetensors").unlink()
    assert main(["train", f"{kind}-digits", "--out", str(halved), "--resume", "--no-report"]) == 0
    whole = (runs / kind / "model.safetensors").read_bytes()
    assert (halved / "model.safetensors").read_bytes() == whole


def test_compare_puts_runs_side_by_side(runs, tmp_path, capsys):
    page = tmp_path / "c.html"
    kinds = ["vae", "ddpm"]
    paths = [str(runs / kind) for kind in kinds]
    assert main(["compare", *paths, "-o", str(page), "--repeats", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "c.json").read_text())
    assert printed["runs"].keys() == written["runs"].keys() == set(kinds)
    assert written["same_data"]
    for kind, entry in written["runs"].items():
        assert entry["model"] == KINDS[kind]
        assert entry["updates"] == 8
        model = RunFolder.open(runs / kind).settings().model((28, 28, 1))
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_array))
        assert entry["parameters"] == sum(leaf.size for leaf in leaves)
        for cost in ("seconds_per_update", "seconds_per_100_samples"):
            assert 0 < entry[cost]["lower_quartile"] <= entry[cost]["upper_quartile"]
    assert written["runs"]["vae"]["seconds_per_update_over_first"] == 1
    text = page.read_text()
    assert text.count("<img") == 2
    assert "http" not in text.replace("http-equiv", "")
    table = rows(written)
    assert table[0] == ["", *kinds]
    assert [row[0] for row in table].count("squared error of the noise") == 1


def test_compare_refuses_what_cannot_be_compared(runs, tmp_path, capsys):
    assert main(["compare", str(runs / "vae")]) == 2
    assert "at least two" in capsys.readouterr().err
    assert main(["compare", str(runs / "vae"), str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert main(["compare", str(runs / "vae"), str(runs / "ddpm"), "-o", "x.pdf"]) == 2
    assert ".html" in capsys.readouterr().err
    other = tmp_path / "other"  # a run that makes three numbers
    shutil.copytree(runs / "vae", other)
    a, b = jax.random.split(jax.random.key(0))
    model = kaem.KAEM(kaem.UnivariatePrior(1, key=a, cells=16), kaem.KAN(3, (3,), key=b))
    model.save(other / "model.safetensors")
    capsys.readouterr()
    assert main(["compare", str(runs / "vae"), str(other)]) == 2
    assert "different shapes" in capsys.readouterr().err


def test_presets_are_the_papers():
    tables = {
        "svhn": ((128, 64, 32), (16, 32, 64, 128), (32, 64, 128, 256), 128),
        "cifar10": ((256, 128, 64), (32, 64, 128, 256), (32, 64, 128, 256), 256),
        "celeba": ((256, 128, 64, 32), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), 512),
    }
    for name, (generator, encoder, channels, time) in tables.items():
        vae, ebm, ddpm = (
            Settings.from_dict(read_preset(preset))
            for preset in (f"vae-{name}-paper", f"neural-ebm-{name}", f"ddpm-{name}")
        )
        for settings in (vae, ebm):
            assert settings.arguments["generator"]["widths"] == generator
            assert settings.arguments["prior"]["coordinates"] == 81
        assert ebm.arguments["model"]["noise"] == 0.3
        pixels = 3 * vae.data.size**2  # 0.01 weighs the mean KL of a latent in the author's loss
        assert 2 * vae.arguments["model"]["noise"] ** 2 == pytest.approx(
            0.01 * pixels / 81, rel=1e-3
        )
        for settings in (vae, ebm, ddpm):
            assert (settings.training.steps, settings.training.batch_size) == (80_000, 50)
            assert settings.optimiser.generator_rate == 1e-4
            assert settings.data.size == (64 if name == "celeba" else 32)
        assert (vae.learner().beta, vae.arguments["encoder"]["widths"]) == (1.0, encoder)
        e = ebm.arguments["prior"]
        assert (e["widths"], e["steps"]) == ((200, 200), 60)
        assert (e["step_size"], e["noise_scale"]) == (0.16, 1.0)
        assert (ebm.learner().steps, ebm.learner().step_size) == (40, 0.01)
        assert ebm.optimiser.prior_rate == 2e-5
        d = ddpm.arguments["model"]
        assert (d["channels"], d["time_dim"], d["timesteps"]) == (channels, time, 1000)
        assert (d["beta_start"], d["beta_end"]) == (1e-4, 2e-2)
        assert (d["sampler"], d["sampling_steps"]) == ("ancestral", None)


@pytest.mark.parametrize(
    ("preset", "setting", "message"),
    [
        ("vae-digits", "learner.beta=-1", "beta"),
        ("vae-digits", "encoder.widths=[8,8,8]", "divisible by 8"),
        ("neural-ebm-digits", "learner.kind=importance", "usually learns by Langevin"),
        ("neural-ebm-digits", "prior.step_size=0", "step_size"),
        ("ddpm-digits", "model.channels=[8,8,8,8]", "divisible by 8"),
        ("ddpm-digits", "model.sampler=euler", "ancestral"),
        ("ddpm-digits", "model.sampling_steps=2000", "sampling_steps"),
        ("digits-kan", "model.kind=gan", "kaem, vae, neural-ebm, ddpm"),
        ("vae-digits", "encoder.widths=wide", "must be a list"),
    ],
)
def test_bad_settings_are_refused(preset, setting, message, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", preset, "--set", setting, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
