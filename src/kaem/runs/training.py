"""Training into a run folder: started, interrupted, resumed, and never overwritten."""

import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..data import load as load_data
from ..data.checks import trainable_on
from ..data.sheets import is_image, sample_sheet, save_png
from ..errors import UserError
from ..files import digest, write_atomically
from ..loading import read
from ..serialisation import save
from ..settings import Settings
from ..training import TrainingDiverged, checkpoint
from ..training.loop import State, initial_state, updates
from .folder import Report, RunFolder, identity
from .resolve import resumed_settings, settings_of


def data_and_model(
    settings: Settings, start: Path | None = None, say: Report = lambda _: None
) -> tuple[np.ndarray, Any]:
    """Return the examples that settings name, and a model that can learn from them.

    The model is that of the file `start`, if it is there, or the untrained one of the settings.
    """
    d = settings.data
    options: Any = {"size": d.size, "channels": d.channels, "limit": d.limit, "mixed": d.mixed}
    x = load_data(d.name, d.key, **options, say=say)
    begun = start is not None and start.is_file()
    model = read(start) if begun else settings.model(x.shape[1:])  # type: ignore[arg-type]
    size = settings.training.batch_size
    trainable_on(x, d.name, batch_size=size, output=model.output, shape=model.data_shape)
    return x, model


def refuse_existing(path: Path) -> None:
    """Raise if anything is at `path`, save what a kill may leave of a first write."""
    if path.is_dir() and all(p.name.endswith(".tmp") for p in path.iterdir()):
        return
    if path.exists():
        raise UserError(
            f"{path} already exists. Continue it with --resume, or choose another folder "
            "with --out."
        )


def start(run: RunFolder, what: str, settings: Settings, model: Any, data: dict[str, Any]) -> None:
    """Make a new run folder; an existing one is never written into.

    What the run starts from is kept in it: resuming needs no other folder.
    """
    refuse_existing(run.path)
    settings.learner().check(model)
    if settings.starts_from_files:
        save(model, run.start_file)
    record = {
        "what": what,
        "settings": settings.to_dict(),
        "data": data,
        "run": identity(settings.to_dict(), data),
        "versions": {p: version(p) for p in ("kaem", "jax", "equinox", "optax", "numpy")},
        "python": platform.python_version(),
        "devices": jax.device_count(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_atomically(run.config_file, json.dumps(record, indent=2).encode())


def _resumed(
    run: RunFolder, settings: Settings, state: State, data: dict[str, Any]
) -> tuple[State, list[str]]:
    """Return the state of the newest checkpoint, with history and settings brought in line with it."""
    record, last = run.record(), settings.training.steps
    if record["data"] != data:
        raise UserError(
            f"the data differs from what {run.path} was started on: got {data}, recorded "
            f"{record['data']}. Point --data to the same data, or start a new run."
        )
    run.check_model()
    state, notes = checkpoint.read(run.checkpoints, state, record.get("run"))
    reached = run.step()
    if reached > max(state.step, last if state.step else 0):
        has = "no checkpoint to go on from"
        if state.step:
            has = f"none newer than of step {state.step}, and {last} steps end before it"
        raise UserError(
            f"{run.path} holds a model of step {reached}, but {has}: going on would overwrite it with "
            f"an earlier one. Restore {run.checkpoints}, begin a new run with --out, or go on from the "
            f"model in a new run with `kaem train {run.path} --finetune importance --out NEW`."
        )
    if reached > state.step:
        notes.append(f"the model of step {reached} stays until training has passed it again")
    devices = record.get("devices", jax.device_count())
    if devices != jax.device_count() and settings.learner().data_parallel:
        notes.append(
            f"the run was started on {devices} devices and goes on with {jax.device_count()}: it "
            "will not be bit for bit what it would have been "
            f"(JAX_NUM_CPU_DEVICES={devices} restores it)"
        )
    kept = [json.dumps(r) + "\n" for r in run.history() if r["step"] <= state.step]
    write_atomically(run.history_file, "".join(kept).encode())
    if state.step > last:
        raise UserError(f"{run.path} is already at step {state.step}, beyond {last} steps.")
    record["settings"] = settings.to_dict()
    write_atomically(run.config_file, json.dumps(record, indent=2).encode())
    return state, notes


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C (or SIGTERM) within only raise a flag; the second interrupts at once."""
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
    """How training ended: where, at which step, whether by Ctrl-C, how fast, and the last metrics."""

    run: RunFolder
    step: int
    interrupted: bool
    seconds: float
    updates_per_second: float | None  # None if nothing was timed after compiling
    metrics: dict[str, float]


class Watcher:
    """What training tells those who watch it: override what you want to hear."""

    def begin(self, step: int, total: int) -> None:
        """Called before the first update, with the step to start from and the last one."""

    def log(self, step: int, metrics: dict[str, float], speed: float | None) -> None:
        """Called at every log step, with the updates for each second once that is known."""

    def say(self, message: str) -> None:
        """Called with a sentence about what was noticed or done."""


def train(
    what: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Outcome:
    """Train a preset, or a model of one's own data, into the run folder `out`; return how it ended.

    **Arguments:** `what` is the name of a preset, the path of data, or with `finetune` that of a run;
    `out` is `runs/WHAT` by default; `resume` continues the run there. `changes` are those of
    `kaem.settings_of`: `data`, `config`, `set`, `prior_from`, `freeze_prior`, `finetune`, `steps` and
    `seed`. Ctrl-C, or SIGTERM, ends training in good order, with a checkpoint.
    """
    watcher, what = watcher or Watcher(), fspath(what)
    path = Path(out) if out is not None else Path("runs") / Path(what).stem
    run = RunFolder.open(path) if resume else RunFolder(path)
    if not resume:
        refuse_existing(path)
    settings = resumed_settings(run, what, **changes) if resume else settings_of(what, **changes)
    x, model = data_and_model(settings, run.start_file, watcher.say)
    data = {"shape": list(x.shape), "dtype": str(x.dtype), "sha256": digest(x)}
    if not resume:
        start(run, what, settings, model, data)
        watcher.say(
            f"training {what} on {len(x)} examples of shape {x.shape[1:]} into {path}; compiling first"
        )
    return _trained(run, settings, model, x, data, resume, watcher)


def _trained(
    run: RunFolder,
    settings: Settings,
    model: Any,
    x: np.ndarray,
    data: dict[str, Any],
    resume: bool,
    watcher: Watcher,
) -> Outcome:
    """Train into `run` until the last step or Ctrl-C, leaving a model and a checkpoint behind."""
    run.check_folders()
    t, plan = settings.training, settings.plan()
    state = initial_state(model, plan, len(x))
    if resume:
        state, notes = _resumed(run, settings, state, data)
        for note in notes:
            watcher.say(note)
        watcher.say(f"resuming {run.path} at step {state.step} of {t.steps}")
    watcher.begin(state.step, t.steps)
    # No times or places: the same settings, data and seed give the same bytes.
    made_by, own = {"settings": settings.to_dict(), "data": data}, run.record().get("run")
    if own is not None:
        made_by["run"] = own
    reached = run.step() if resume else 0
    metrics: dict[str, float] = {}
    began = mark = time.perf_counter()
    first = warm = state.step
    speed: float | None = None
    stopped = False

    def keep(state: State) -> None:
        checkpoint.write(run.checkpoints, state, t.keep_checkpoints, own)
        if state.step >= reached:  # never an earlier model over a later one
            save(plan.finished(state.best), run.model_file, made_by | {"step": state.step})

    try:
        with interruptible() as interrupted, open(run.history_file, "a", encoding="utf8") as log:
            for boundary in updates(state, x, plan):
                state = boundary.state
                if state.step % t.sample_every == 0 and is_image(x.shape[1:]):
                    images = state.best.sample(jax.random.key(t.seed), 64)
                    save_png(run.samples / f"{state.step:08d}.png", sample_sheet(images))
                if boundary.metrics is None:
                    continue
                metrics, now = boundary.metrics, time.perf_counter()
                for note in boundary.notes:
                    watcher.say(note)
                if warm == first:  # the first window compiles
                    mark, warm = now, state.step
                else:
                    speed = (state.step - warm) / (now - mark)
                record = {"step": state.step, "seconds": round(now - began, 3), **metrics}
                log.write(json.dumps(record) + "\n")
                log.flush()
                watcher.log(state.step, metrics, speed)
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
    return Outcome(run, state.step, stopped, seconds, speed, metrics)
