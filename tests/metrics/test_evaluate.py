"""`kaem evaluate`, the way a user meets it: numbers, records, figures and refusals."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import stats

import kaem
from kaem import KAEM
from kaem.cli import main
from kaem.errors import UserError
from kaem.metrics import METRICS, Examples, Metric, Request, evaluate
from kaem.metrics.distances.frechet import Statistics, frechet_distance, statistics
from kaem.metrics.likelihood.entries import likelihood
from kaem.page import score
from kaem.runs import RunFolder
from support.linear_gaussian import Linear, normal_prior
from support.pictures import assert_drawn


def evaluated(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_a_run_is_evaluated_and_keeps_what_was_found(trained, capsys):
    first = evaluated(capsys, trained, "--samples", "300")
    assert set(first["results"]) == {"proxy", "proxy_precision", "proxy_recall"}
    assert first["results"]["proxy"] > 0
    entry = first["details"]["proxy"]
    assert entry["reference"]["n"] == entry["generated"]["n"] == 300
    assert entry["reference"]["source"] == "mnist5k"
    again = evaluated(capsys, trained, "--samples", "300")
    assert again["details"] == first["details"]  # everything that is needed to repeat it
    more = evaluated(
        capsys, trained, "--likelihood", "--proposals", "2048", "--examples", "12"
    )  # importance, unless another method is named
    kept = json.loads((trained / "metrics.json").read_text())
    assert kept["results"].keys() == first["results"].keys() | more["results"].keys()
    assert kept["details"]["proxy"] == first["details"]["proxy"]
    bits, nats = (
        more["results"][f"{name}_importance"] for name in ("bits_per_dimension", "log_marginal")
    )
    assert bits == pytest.approx(8 - nats / 784 / np.log(2))
    entry = more["details"]["log_marginal_importance"]
    assert entry["examples"]["split"] == "train"  # the digits have no test set
    assert entry["effort"]["samples"] == 2048
    assert_drawn(trained / "figures" / "likelihood-importance.png", 4.2)


def test_chains_and_latents_are_diagnosed(trained, capsys):
    found = evaluated(capsys, trained, "--posterior", "--examples", "8", "--steps", "60")["results"]
    assert found["r_hat"] >= 1
    assert 0 < found["acceptance"] <= 1
    assert 0 <= found["active_latents"] <= 3
    assert_drawn(trained / "figures" / "latents.png", 5.2)


def test_held_out_data_are_not_called_training_data(trained, tmp_path, capsys):
    x = RunFolder.open(trained).data()
    np.save(tmp_path / "others.npy", 255 - x[:40])
    np.save(tmp_path / "same.npy", x)
    ask = [
        "evaluate",
        str(trained),
        "--likelihood",
        "--examples",
        "12",
        "--proposals",
        "64",
        "--json",
    ]
    for file, split, told in (("others", "all", False), ("same", "train", True)):
        assert main([*ask, "--data", str(tmp_path / f"{file}.npy")]) == 0
        shown = capsys.readouterr()
        assert ("training examples" in shown.err) == told
        entry = json.loads(shown.out)["details"]["log_marginal_importance"]
        assert entry["examples"]["split"] == split


def test_two_sets_of_images(tmp_path, capsys):
    """A folder against an array; the same set is at distance zero, and noise is far."""
    rng = np.random.default_rng(0)
    smooth = np.repeat(np.repeat(rng.integers(0, 256, (250, 4, 4, 1)), 4, 1), 4, 2).astype(np.uint8)
    noise = rng.integers(0, 256, smooth.shape).astype(np.uint8)
    folder = tmp_path / "real"
    folder.mkdir()
    for i, image in enumerate(smooth):
        Image.fromarray(image[..., 0]).save(folder / f"{i:03}.png")
    np.save(tmp_path / "same.npy", smooth)
    np.save(tmp_path / "noise.npy", noise)
    same = evaluated(capsys, folder, tmp_path / "same.npy")["results"]
    assert same["proxy"] == pytest.approx(0, abs=1e-6)
    assert same["proxy_precision"] == same["proxy_recall"] == 1
    out = tmp_path / "found.json"
    far = evaluated(capsys, folder, tmp_path / "noise.npy", "-o", out)
    assert far["results"]["proxy"] > 1e-2
    assert far["results"]["proxy_recall"] < 0.05  # noise lies at the centre of all, and is alike
    assert json.loads(out.read_text())["results"] == far["results"]


def test_saved_features_take_the_place_of_images(tmp_path, capsys):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(600, 8)), rng.normal(0.5, 1, (600, 8))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    found = evaluated(capsys, tmp_path / "a.npy", tmp_path / "b.npy", "--fid", "--kid")
    a, b = (x.astype(np.float32) for x in (a, b))
    expected = frechet_distance(statistics(a), statistics(b))
    assert found["results"]["fid"] == pytest.approx(expected, rel=1e-9)
    low, high = found["details"]["fid_infinity"]["interval"]
    truth = frechet_distance(statistics(a), Statistics(10**9, np.full(8, 0.5), np.eye(8)))
    assert low < truth < high
    assert found["results"]["kid"] > 5 * found["results"]["kid_error"]
    assert found["details"]["fid"]["extractor"] == "given features"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--fid"], "grey"),
        (["RUN", "--samples", "0"], "--samples must be at least 1"),
        (["RUN", "-o", "x.json"], "REAL and FAKE"),
        (["RUN", "--sizes", "100,200"], "for --fid and --kid"),
        (["RUN", "--likelihood", "importance", "--temperatures", "5"], "no temperatures"),
        (["RUN", "--likelihood", "ais", "--proposals", "1"], "at least 2"),
        (["RUN", "--posterior", "--examples", "1"], "2 examples"),
        (["RUN", "--posterior", "--likelihood", "ais", "--data", "A"], "shape"),
        (["PHOTOS", "PHOTOS", "--kid", "--weights", "A"], "A.npy"),
        (["PHOTOS", "PHOTOS", "--fid", "--weights", "nowhere.pt"], "no Inception weights at nowhere.pt"),
        (["PHOTOS", "DARK"], "scaled differently"),
        (["PHOTOS", "SIGNED"], "(x + 1) / 2"),
        (["PHOTOS", "GREY"], "grey with grey"),
        (["RUN", "RUN"], "is a run"),
        (["RUN", "--data", "A"], "compare with data of the kind"),
        (["A", "B", "-o", "no/such/folder/x.json"], "no folder"),
        (["A", "B", "--likelihood", "ais"], "needs a model"),
        (["A", "B", "C"], "got 3 paths"),
        (["A", "B", "--fid", "--sizes", "2,x"], "whole numbers"),
        (["A", "B", "--fid", "--sizes", "100,200,300,400,5000"], "5000"),
        (["A", "B", "--fid", "-o", "x.csv"], ".json"),
        (["A", "NAN", "--fid"], "NaN or infinite"),
        (["A", "WIDE", "--fid"], "8"),
        (["nowhere", "--fid"], "not a run folder"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_remedy(trained, tmp_path, capsys, arguments, message):
    rng = np.random.default_rng(0)
    sets = {"A": rng.normal(size=(600, 8)), "B": rng.normal(size=(600, 8)), "C": np.zeros((3, 8))}
    sets["NAN"] = np.where(np.arange(600)[:, None] == 7, np.nan, sets["B"])
    sets["PHOTOS"] = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    sets["DARK"] = (sets["PHOTOS"] / 255).round().astype(np.uint8)
    sets["SIGNED"] = rng.uniform(-1, 1, (20, 8, 8, 3))
    sets["GREY"] = sets["PHOTOS"][..., :1]
    sets["WIDE"] = rng.normal(size=(600, 9))
    for name, x in sets.items():
        np.save(tmp_path / f"{name}.npy", x)
    places = {name: str(tmp_path / f"{name}.npy") for name in sets} | {"RUN": str(trained)}
    before = (trained / "metrics.json").read_bytes() if (trained / "metrics.json").exists() else b""
    assert message in refused(capsys, *(places.get(a, a) for a in arguments))
    after = (trained / "metrics.json").read_bytes() if (trained / "metrics.json").exists() else b""
    assert before == after


def test_damaged_metrics_are_moved_aside(trained, tmp_path, capsys):
    """And neither stop an evaluation nor are lost, however they are damaged."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    metrics = run / "metrics.json"
    entry = '{"details": {"kid": %s}}'
    odd = ("{", '{"details": []}', entry % "{}", entry % '{"value": NaN}', entry % '{"value": "x"}')
    for number, damaged in enumerate((*odd, "[" * 200_000), 1):
        metrics.write_text(damaged)
        assert main(["evaluate", str(run), "--samples", "100"]) == 0
        aside = run / f"metrics.json.broken{'' if number == 1 else f'-{number}'}"
        assert f"was moved to {aside}" in capsys.readouterr().err
        assert aside.read_text() == damaged
        assert json.loads(metrics.read_text())["results"]["proxy"] > 0
    assert len(list(run.glob("metrics.json.broken*"))) == len(odd) + 1


@pytest.mark.parametrize("name", ["figures", "samples", "checkpoints"])
def test_nothing_is_written_through_a_link_that_leads_out_of_the_run(
    trained, tmp_path, capsys, name
):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run)
    shutil.rmtree(run / name, ignore_errors=True)
    outside.mkdir()
    (run / name).symlink_to(outside)
    config = ["train", "digits-kan", "--out", str(run), "--resume", "--steps", "30"]
    for command in (
        ["evaluate", str(run), "--samples", "100"], ["plot", str(run), "training"],
        ["report", str(run)], ["symbolic", str(run)], config,
    ):  # fmt: skip
        before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
        assert main(command) == 2, command
        assert f"is a link to {outside}" in capsys.readouterr().err
        assert list(outside.iterdir()) == []
        assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert main(["info", str(run)]) == 0  # which writes nothing


def test_a_run_may_be_a_link_and_have_links_within(trained, tmp_path):
    run, link = tmp_path / "run", tmp_path / "link"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "figures", ignore_errors=True)
    (run / "elsewhere").mkdir()
    (run / "figures").symlink_to("elsewhere")
    link.symlink_to(run)
    assert main(["plot", str(link), "training"]) == 0
    assert (run / "elsewhere" / "training.png").is_file()


def test_more_samples_than_memory_are_refused_before_any_is_drawn(trained, capsys, monkeypatch):
    monkeypatch.setattr("kaem.metrics.evaluation.drawn", lambda *_: pytest.fail("drawn"))
    message = refused(capsys, trained, "--samples", "100000000")
    assert "78 GB" in message  # 28 x 28 bytes of each
    assert "307 GB" in message  # 128 features of each in double precision, three times
    most = int(re.search(r"lower --samples to (\d+)", message)[1])
    assert most * (784 + 3072) <= 16e9 < (most + 1) * (784 + 3072)


def test_a_new_model_forgets_what_the_old_one_was_found_to_do(trained, tmp_path, capsys):
    metrics = trained / "metrics.json"
    stale = {"details": {"fid": {"value": 1.0, "model_sha256": "of another model"}}}
    metrics.write_text(json.dumps(stale))
    evaluated(capsys, trained, "--samples", "100")
    assert "fid" not in json.loads(metrics.read_text())["results"]


def test_of_two_estimates_it_is_said_which_to_believe():
    """Chains that did not mix against a lower bound that holds: the evidence is known here."""
    matrix = jnp.asarray([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.4]])
    model = KAEM(normal_prior(2, 128), Linear(matrix), noise=0.02)
    z = np.random.default_rng(0).normal(size=(4, 2))
    x = z @ np.asarray(matrix).T
    evidence = stats.multivariate_normal(
        np.zeros(3), matrix @ matrix.T + 0.02**2 * np.eye(3)
    ).logpdf(x)
    short = Request(proposals=2, temperatures=1, steps=8)
    details = likelihood(Examples(model, x, short), "trapezoid")
    entry = details["log_marginal_trapezoid"]
    assert entry["error"] is None
    assert entry["value"] < entry["importance_bound"] < evidence.mean() + 1
    assert f"believe that, as a lower bound, and not {entry['value']:.4g}" in entry["why"]
    details = likelihood(Examples(model, x, Request(proposals=16)), "importance")
    entry = details["log_marginal_importance"]
    assert entry["error"] is None
    assert entry["value"] < evidence.mean()
    assert "lower bound" in entry["why"]
    assert "count only where they are larger" in entry["why"]


def brightness(sets):
    """A metric of samples: the difference of mean pixels."""
    return {"brightness": {"value": float(sets.fake.mean() - sets.real.mean()), "error": 0.5}}


def error_of_decoding(examples):
    """A metric of a model and examples."""
    x = examples.model.checked_data(examples.x)
    made = examples.model.decode(examples.model.prior.sample(jax.random.key(0), len(x)))
    return {"random_error": {"value": float(jnp.mean((x - made) ** 2))}}


def refuses_digits(model, request):
    raise UserError("digits are too grey for this.")


def test_a_metric_is_one_entry(trained, tmp_path, capsys, monkeypatch):
    """Registered, it is in the help, computed by name, kept with its circumstances, and reported."""
    monkeypatch.setitem(METRICS, "brightness", Metric("of mean pixels", "samples", brightness))
    monkeypatch.setitem(METRICS, "decoding", Metric("of no use", "examples", error_of_decoding))
    refusing = Metric("of nothing", "examples", error_of_decoding, check=refuses_digits)
    monkeypatch.setitem(METRICS, "refusing", refusing)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "metrics.json").unlink(missing_ok=True)
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    listed = re.sub(r"\n {9,}", " ", capsys.readouterr().out)  # long lines are wrapped
    for name, metric in METRICS.items():
        assert re.search(rf"^  {name} +{re.escape(metric.help)}$", listed, re.MULTILINE)
    names = [part for name in ("brightness", "decoding") for part in ("--metric", name)]
    found = evaluated(capsys, run, *names, "--samples", "50", "--examples", "7")
    assert set(found["results"]) == {"brightness", "brightness_error", "random_error"}
    kept = json.loads((run / "metrics.json").read_text())
    assert kept["details"] == found["details"]
    entry = kept["details"]["brightness"]
    fake = kaem.load(run).sample(jax.random.split(jax.random.key(0), 1)[0], 50)
    with_bytes = np.floor(np.asarray(fake) * 255 + 0.5).mean()
    real = RunFolder.open(run).data()
    assert entry["value"] == pytest.approx(with_bytes - real.mean(), abs=1e-3)
    assert entry["reference"]["n"] == 300
    assert entry["reference"]["is_training_data"]
    assert entry["generated"]["n"] == 50
    assert kept["details"]["random_error"]["examples"]["n"] == 7
    assert RunFolder.open(run).metrics() == kept["details"]
    assert score(entry) == f"{entry['value']:,.5g} ± 0.5"  # as reports and comparisons show it
    again = evaluate(RunFolder.open(run), metrics=["brightness"], samples=50)
    assert again["details"]["brightness"] == entry
    before = (run / "metrics.json").read_bytes()
    assert "too grey" in refused(capsys, run, "--metric", "refusing", "--metric", "brightness")
    assert (run / "metrics.json").read_bytes() == before


def test_metrics_that_are_not_there_are_refused(trained, tmp_path, capsys):
    assert "choose one of proxy, fid, kid" in refused(capsys, trained, "--metric", "beauty")
    assert "choose one of importance" in refused(capsys, trained, "--likelihood", "guess")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(9, 3)))
    both = [tmp_path / "a.npy", tmp_path / "a.npy"]
    assert "--metric posterior needs a model" in refused(capsys, *both, "--metric", "posterior")
    assert "--steps is for --likelihood and --posterior" in refused(
        capsys, trained, "--steps", "9", "--proxy"
    )


def test_a_metric_by_name_is_the_flag(trained, capsys):
    by_name = evaluated(capsys, trained, "--metric", "proxy", "--samples", "100")
    assert by_name["details"] == evaluated(capsys, trained, "--samples", "100")["details"]
