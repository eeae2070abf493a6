"""Training into a run folder: started, interrupted, resumed, and never overwritten."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import jax

from ..data import load as load_data
from ..data.checks import trainable_on
from ..data.rows import Examples
from ..errors import UserError
from ..files import digest, write_atomically
from ..loading import read
from ..processes import is_first, name, together
from ..serialisation import save
from ..settings import Settings
from ..training import checkpoint
from ..training.checkpoint import shared
from ..training.plan import State, initial_state
from .folder import Report, RunFolder, identity
from .following import Others, introduced
from .locking import writing
from .resolve import repeated_settings, resumed_settings, settings_of
from .session import Outcome, Session, Watcher, WritingSession


def data_and_model(
    settings: Settings, start: Path | None = None, say: Report = lambda _: None
) -> tuple[Examples, Any]:
    """Return the examples that settings name, and a model that can learn from them.

    The model is that of the file `start`, if it is there, or the untrained one of the settings.
    """
    d = settings.data
    options: Any = {"size": d.size, "channels": d.channels, "limit": d.limit, "mixed": d.mixed}
    x = load_data(d.name, d.key, **options, say=say, memory=d.memory_bytes)
    model = first_model(settings, x.shape[1:], start)
    size = settings.training.batch_size
    trainable_on(x, d.name, batch_size=size, output=model.output, shape=model.data_shape)
    return x, model


def first_model(settings: Settings, shape: tuple[int, ...], start: Path | None = None) -> Any:
    """Return what training begins with: the model of the file `start`, if it is there, or of the settings."""
    return read(start) if start is not None and start.is_file() else settings.model(shape)


def refuse_existing(path: Path) -> None:
    """Raise if anything is at `path`, save what a kill may leave before a run is recorded."""
    left = {RunFolder(path).lock_file, RunFolder(path).start_file}
    if path.is_dir() and all(p in left or p.name.endswith(".tmp") for p in path.iterdir()):
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
    run.start_file.unlink(missing_ok=True)  # a kill may have left that of another run
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
    run.tidy()
    checkpoint.tidy(run.checkpoints)
    state, notes = checkpoint.read(run.checkpoints, state, record.get("run"))
    reached = run.step()
    found = bool(checkpoint.steps(run.checkpoints))
    if reached > max(state.step, last if found else 0):
        has = "no checkpoint to go on from"
        if found:
            has = f"none newer than of step {state.step}, and {last} steps end before it"
        raise UserError(
            f"{run.path} holds a model of step {reached}, but {has}: going on would overwrite it with "
            f"an earlier one. Restore {run.checkpoints}, begin a new run with --out, or go on from the "
            f"model in a new run with `kaem train {run.path} --finetune importance --out NEW`."
        )
    if reached > state.step:
        notes.append(f"the model of step {reached} stays until training has passed it again")
    devices = record.get("devices", jax.device_count())
    if devices != jax.device_count():
        notes.append(
            f"the run was started on {devices} devices and goes on with {jax.device_count()}: it will be "
            "what it would have been but for rounding"
        )
    run.cut_history(state.step)
    if state.step > last:
        raise UserError(f"{run.path} is already at step {state.step}, beyond {last} steps.")
    record["settings"] = settings.to_dict()
    write_atomically(run.config_file, json.dumps(record, indent=2).encode())
    return state, notes


def train(
    what: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    resume: bool | Literal["auto"] = False,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Outcome:
    """Train a preset, or a model of one's own data, into the run folder `out`; return how it ended.

    **Arguments:** `what` is the name of a preset, the path of data, or with `finetune` that of a run;
    `out` is `runs/WHAT` by default; `resume` continues the run there, or with `"auto"` starts it,
    continues it or finds it finished, whichever is due. `changes` are those of `kaem.settings_of`:
    `data`, `config`, `set`, `prior_from`, `freeze_prior`, `finetune`, `steps` and `seed`. Ctrl-C, or
    SIGTERM, ends training in good order, with a checkpoint.
    """
    watcher, what = watcher or Watcher(), fspath(what)
    if resume not in (False, True, "auto"):
        raise UserError(f'resume must be True, False or "auto", got {resume!r}.')
    path = Path(out) if out is not None else Path("runs") / Path(what).stem
    if not is_first():
        return _followed(path)
    with Others() as others:
        return _First(watcher, others).train(what, path, resume, changes)


class _First:
    """The process that reads and writes the run folder, or the only one."""

    def __init__(self, watcher: Watcher, others: Others) -> None:
        self.watcher, self.others = watcher, others

    def train(
        self,
        what: str,
        path: Path,
        resume: bool | Literal["auto"],
        changes: dict[str, Any],
    ) -> Outcome:
        run = RunFolder.open(path) if resume is True else RunFolder(path)
        if resume is True or (resume and run.config_file.is_file()):
            with writing(run):
                settled = resumed_settings if resume is True else repeated_settings
                return self.continued(run, settled(run, what, **changes), resume == "auto")
        refuse_existing(path)
        settings = settings_of(what, **changes)
        x, model = data_and_model(settings, say=self.watcher.say)
        state = initial_state(model, settings.plan(), len(x))
        with writing(run):
            if resume and run.config_file.is_file():  # by a process that was faster, and is gone
                return self.continued(run, repeated_settings(run, what, **changes), True)
            start(run, what, settings, model, _fingerprint(x))
            run.check_folders()
            self.watcher.say(
                f"training {what} on {len(x)} examples of shape {x.shape[1:]} into {path}; compiling first"
            )
            return self.trained(run, settings, x, state)

    def continued(self, run: RunFolder, settings: Settings, may_be_done: bool) -> Outcome:
        """Train an existing run to its end, if it is not there yet."""
        if may_be_done and _is_finished(run, settings.training.steps):
            self.watcher.say(f"{run.path} is trained already, to step {settings.training.steps}")
            self.others.dismiss(settings.training.steps)
            last = dict(run.history()[-1]) if run.history() else {}
            metrics = {
                name: value for name, value in last.items() if name not in ("step", "seconds")
            }
            return Outcome(run, settings.training.steps, False, 0.0, None, metrics)
        x, model = data_and_model(settings, run.start_file, self.watcher.say)
        run.check_folders()
        state = initial_state(model, settings.plan(), len(x))
        state, notes = _resumed(run, settings, state, _fingerprint(x))
        for note in notes:
            self.watcher.say(note)
        self.watcher.say(f"resuming {run.path} at step {state.step} of {settings.training.steps}")
        return self.trained(run, settings, x, state)

    def trained(self, run: RunFolder, settings: Settings, x: Examples, state: State) -> Outcome:
        """Train from `state`, together with the other processes if there are any."""
        start = run.start_file.read_bytes() if run.start_file.is_file() else b""
        self.others.introduce({"settings": settings.to_dict(), "data": run.record()["data"]}, start)
        with together("begin"):
            session = WritingSession(run, settings, x, _begin(run, settings, x), self.watcher)
        self.watcher.begin(state.step, settings.training.steps)
        return session.train(shared(state))


def _is_finished(run: RunFolder, steps: int) -> bool:
    """Return whether the model of the last step is there, and as it was written."""
    run.check_model()
    try:
        read(run.model_file)
    except UserError:
        return False
    return run.step() == steps


def _followed(path: Path) -> Outcome:
    """Train as a process beside the first, which says what: nothing is read but the data, nothing written."""
    told, start = introduced()
    if "finished" in told:
        return Outcome(RunFolder(path), told["finished"], False, 0.0, None, {})
    with TemporaryDirectory() as folder:
        run = RunFolder(folder)
        with together("begin"):
            if start:
                run.start_file.write_bytes(start)
            settings = Settings.from_dict(told["settings"])
            x, model = data_and_model(settings, run.start_file)
            if _fingerprint(x) != told["data"]:
                raise UserError(
                    f"{name()} reads other data than the first process: got {_fingerprint(x)}, expected "
                    f"{told['data']}. Put the same data at {settings.data.name} everywhere."
                )
            session = Session(run, settings, x, _begin(run, settings, x), Watcher())
        outcome = session.train(shared(initial_state(model, settings.plan(), len(x))))
    return replace(outcome, run=RunFolder(path))


def _begin(run: RunFolder, settings: Settings, x: Examples) -> Callable[[], State]:
    def begin() -> State:  # anew: what training began with may have been overwritten in memory
        model = first_model(settings, x.shape[1:], run.start_file)
        return initial_state(model, settings.plan(), len(x))

    return begin


def _fingerprint(x: Any) -> dict[str, Any]:
    known = x.survey.sha256 if hasattr(x, "layout") else digest(x)  # of the same bytes
    return {"shape": list(x.shape), "dtype": str(x.dtype), "sha256": known}
