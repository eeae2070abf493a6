"""A run folder: what `kaem train` writes, resumes and never overwrites."""

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..data import load as load_data
from ..data.arrays import SPLIT_KEYS, Split
from ..data.sheets import is_image, sample_sheet, save_png
from ..errors import UNREADABLE, UserError
from ..files import digest, read_json, write_atomically
from ..serialisation import read, read_config, save
from . import checkpoint
from .build import build_model, build_posterior, check_data
from .config import Config
from .loop import State, TrainingDiverged, initial_state, updates

Report = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """The paths of a run folder."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def start_file(self) -> Path:
        """The model that training began with, where that came from other files."""
        return self.path / "start.safetensors"

    @property
    def history_file(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.json"

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "Run":
        """An existing run, or an error that says what is missing."""
        run = Run(Path(path))
        if not run.config_file.is_file():
            what = (
                "a file, not a run folder"
                if run.path.is_file()
                else "not a run folder (no config.json)"
            )
            raise UserError(
                f"{run.path} is {what}. Runs are made by `kaem train`; give the folder."
            )
        return run

    def record(self) -> dict[str, Any]:
        """What `config.json` holds."""
        found = read_json(self.config_file)
        for name, kind in (("what", str), ("settings", dict), ("data", dict)):
            if not isinstance(found.get(name), kind):
                raise UserError(
                    f"{self.config_file} has no {name!r}, which every run records. Restore the file, or "
                    "start a new run."
                )
        return found

    def config(self) -> Config:
        return Config.from_dict(self.record().get("settings", {}))

    def step(self) -> int:
        """The step of the model in this folder; 0 if there is none."""
        if not self.model_file.is_file():
            return 0
        try:
            return int(read_config(self.model_file)["step"])
        except (UserError, KeyError, TypeError, ValueError, OverflowError):  # damaged, or older
            return int(max((record["step"] for record in self.history()), default=0))

    def history(self) -> list[dict[str, Any]]:
        """Every logged step; a last line cut off by a kill is ignored."""
        if not self.history_file.is_file():
            return []
        records = []
        lines = self.history_file.read_text("utf8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if "step" not in record or not all(
                    isinstance(value, int | float) for value in record.values()
                ):
                    raise ValueError("not a record of numbers")
            except (AttributeError, TypeError, *UNREADABLE) as error:
                if number == len(lines):
                    break
                raise UserError(
                    f"line {number} of {self.history_file} is damaged ({error}); remove it, or restore the "
                    "file."
                ) from error
            records.append(record)
        return records

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The `details` of `metrics.json`: everything that was measured, by name."""
        if not os.path.lexists(self.metrics_file):
            return {}
        details = read_json(self.metrics_file).get("details", {})
        try:
            json.dumps(details, allow_nan=False)
            numbers = [n for e in details.values() for n in (e["value"], e.get("error"))]
            whole = all(n is None or isinstance(n, int | float) for n in numbers)
        except (KeyError, TypeError, AttributeError, *UNREADABLE):
            whole = False
        if not whole:
            raise UserError(
                f"{self.metrics_file} is not what `kaem evaluate` writes; restore it, or move it away."
            )
        return details

    def check_folders(self) -> None:
        """Raise if a folder that is written to is a link that leads out of the run."""
        top = Path(os.path.realpath(self.path))
        for folder in (self.checkpoints, self.samples, self.figures):
            target = Path(os.path.realpath(folder))
            if not target.is_relative_to(top):
                raise UserError(
                    f"{folder} is a link to {target}, and nothing is written outside of the run: put a "
                    "folder in its place, or move the whole run there and link to that."
                )


def fingerprint(x: np.ndarray) -> dict[str, Any]:
    """Enough of the data to notice that it changed."""
    return {"shape": list(x.shape), "dtype": str(x.dtype), "sha256": digest(x)}


def training_data(config: Config, say: Report = lambda _: None) -> np.ndarray:
    d = config.data
    options: Any = {"size": d.size, "channels": d.channels, "limit": d.limit, "mixed": d.mixed}
    x = load_data(d.name, d.key, **options, say=say)
    check_data(
        x,
        config.data.name,
        batch_size=config.training.batch_size,
        output="sigmoid" if config.model.kind == "ddpm" else config.generator.output,
    )
    return x


def evaluation_data(
    config: Config,
    source: str | None,
    split: Split,
    limit: int | None = None,
    say: Report = lambda _: None,
) -> np.ndarray:
    """What a trained model is compared with: its own data or `source`, read in the same way."""
    d = config.data
    name, key = (d.name, d.key) if source is None else (source, None)
    if split == "test" and key in SPLIT_KEYS["train"]:
        key = None  # of the same file, what goes by the other split's name
    least = limit if split == "test" or d.limit is None else min(limit or d.limit, d.limit)
    options: Any = {"size": d.size, "channels": d.channels, "limit": least, "mixed": d.mixed}
    return load_data(name, key, split, **options, say=say)


def refuse_existing(path: Path) -> None:
    """Raise if anything is at `path`, save what a kill may leave of a first write."""
    if path.is_dir() and all(p.name.endswith(".tmp") for p in path.iterdir()):
        return
    if path.exists():
        raise UserError(
            f"{path} already exists. Continue it with --resume, or choose another folder "
            "with --out."
        )


def start(path: Path, what: str, config: Config, x: np.ndarray) -> Run:
    """Make a new run folder; an existing one is never written into.

    What the run starts from is kept in it: resuming needs no other folder.
    """
    refuse_existing(path)
    run = Run(path)
    if config.model.start or config.prior.start:
        save(build_model(config, x.shape[1:]), run.start_file)
    record = {
        "what": what,
        "settings": config.to_dict(),
        "data": fingerprint(x),
        "versions": {p: version(p) for p in ("kaem", "jax", "equinox", "optax", "numpy")},
        "python": platform.python_version(),
        "devices": jax.device_count(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_atomically(run.config_file, json.dumps(record, indent=2).encode())
    return run


def resume(run: Run, config: Config, state: State, x: np.ndarray) -> tuple[State, list[str]]:
    """The state of the newest checkpoint, with history and settings brought in line with it."""
    record = run.record()
    recorded, got = record.get("data"), fingerprint(x)
    if recorded != got:
        raise UserError(
            f"the data differs from what {run.path} was started on: got {got}, recorded "
            f"{recorded}. Point --data to the same data, or start a new run."
        )
    state, notes = checkpoint.read(run.checkpoints, state)
    reached = run.step()
    if reached > max(state.step, config.training.steps if state.step else 0):
        has = "no checkpoint to go on from"
        if state.step:
            has = f"none newer than of step {state.step}, and {config.training.steps} steps end before it"
        raise UserError(
            f"{run.path} holds a model of step {reached}, but {has}: going on would overwrite it with "
            f"an earlier one. Restore {run.checkpoints}, begin a new run with --out, or go on from the "
            f"model in a new run with `kaem train {run.path} --finetune importance --out NEW`."
        )
    if reached > state.step:
        notes.append(f"the model of step {reached} stays until training has passed it again")
    devices = record.get("devices", jax.device_count())
    if devices != jax.device_count() and build_posterior(config).data_parallel:
        notes.append(
            f"the run was started on {devices} devices and goes on with {jax.device_count()}: it "
            "will not be bit for bit what it would have been "
            f"(JAX_NUM_CPU_DEVICES={devices} restores it)"
        )
    kept = [json.dumps(r) + "\n" for r in run.history() if r["step"] <= state.step]
    write_atomically(run.history_file, "".join(kept).encode())
    if state.step > config.training.steps:
        raise UserError(
            f"{run.path} is already at step {state.step}, beyond {config.training.steps} steps."
        )
    record["settings"] = config.to_dict()
    write_atomically(run.config_file, json.dumps(record, indent=2).encode())
    return state, notes


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C (or SIGTERM) only raises a flag; the second interrupts at once."""
    pressed = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are somebody else's
        previous = {}
    try:
        yield lambda: pressed
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: at which step, whether by Ctrl-C, how fast, and the last metrics."""

    step: int
    interrupted: bool
    seconds: float
    updates_per_second: float | None  # None if nothing was timed after compiling
    metrics: dict[str, float]


def train(
    run: Run,
    config: Config,
    x: np.ndarray,
    *,
    resuming: bool = False,
    on_log: Callable[[int, dict[str, float], float | None], None] = lambda *_: None,
    say: Report = lambda _: None,
) -> Outcome:
    """Train into `run` until the last step or Ctrl-C, leaving a model and a checkpoint behind."""
    run.check_folders()
    t = config.training
    posterior = build_posterior(config)
    begun = run.start_file.is_file()
    model = read(run.start_file) if begun else build_model(config, x.shape[1:])
    state = initial_state(model, posterior, config, len(x))
    if resuming:
        state, notes = resume(run, config, state, x)
        for note in notes:
            say(note)
        say(f"resuming {run.path} at step {state.step} of {t.steps}")
    # No times or places: the same settings, data and seed give the same bytes.
    made_by = {"settings": config.to_dict(), "data": fingerprint(x)}
    reached = run.step() if resuming else 0
    draw = eqx.filter_jit(lambda model, key: model.sample(key, 64))
    metrics: dict[str, float] = {}
    began = mark = time.perf_counter()
    first = warm = state.step
    speed: float | None = None
    stopped = False

    def keep(state: State) -> None:
        checkpoint.write(run.checkpoints, state, t.keep_checkpoints)
        if state.step >= reached:  # never an earlier model over a later one
            save(state.model, run.model_file, made_by | {"step": state.step})

    try:
        with interruptible() as interrupted, open(run.history_file, "a", encoding="utf8") as log:
            for boundary in updates(state, x, posterior, config):
                state = boundary.state
                if state.step % t.sample_every == 0 and is_image(x.shape[1:]):
                    images = draw(state.model, jax.random.key(t.seed))
                    save_png(run.samples / f"{state.step:08d}.png", sample_sheet(images))
                if boundary.metrics is None:
                    continue
                metrics, now = boundary.metrics, time.perf_counter()
                for note in boundary.notes:
                    say(note)
                if warm == first:  # the first window compiles
                    mark, warm = now, state.step
                else:
                    speed = (state.step - warm) / (now - mark)
                record = {"step": state.step, "seconds": round(now - began, 3), **metrics}
                log.write(json.dumps(record) + "\n")
                log.flush()
                on_log(state.step, metrics, speed)
                stopped = interrupted() and state.step < t.steps
                if stopped or state.step % t.checkpoint_every == 0 or state.step == t.steps:
                    keep(state)
                if stopped:
                    break
    except TrainingDiverged as error:
        keep(error.state)
        raise
    if not run.model_file.is_file() or first == state.step:
        keep(state)
    seconds = time.perf_counter() - began
    return Outcome(state.step, stopped, seconds, speed, metrics)
