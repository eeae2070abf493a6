"""A run in training: from a state to the last step, a signal, or what stops it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..data.rows import Examples
from ..data.sheets import is_image, sample_sheet, save_png
from ..files import NotWritten, write_atomically
from ..processes import any_of, together
from ..serialisation import save
from ..settings import Settings
from ..training import TrainingDiverged, checkpoint
from ..training.checkpoint import shared
from ..training.loop import Boundary, updates
from ..training.plan import State
from .folder import RunFolder
from .interruption import interruptible

SLOWED = 0.5  # the share of the rates with which training goes on after it has diverged


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


class _Clock:
    """Seconds since training began, and its speed without the first window, which compiles."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.speed: float | None = None
        self._mark: tuple[int, float] | None = None

    def seconds(self, step: int) -> float:
        """Return the seconds until now, at a log step."""
        now = time.perf_counter()
        if self._mark is None or step <= self._mark[0]:  # before it: training went back
            self._mark = step, now
        else:
            self.speed = (step - self._mark[0]) / (now - self._mark[1])
        return now - self.began


class Session:
    """Updates of a run, and what they leave in its folder; several processes have one each."""

    def __init__(
        self,
        run: RunFolder,
        settings: Settings,
        x: Examples,
        begin: Callable[[], State],
        watcher: Watcher,
    ) -> None:
        """Be about to train `run` on `x`; `begin` returns the state before the first update."""
        self.run, self.settings, self.x = run, settings, x
        self.begin, self.watcher = begin, watcher
        self.metrics: dict[str, float] = {}
        self.clock = _Clock()

    def train(self, state: State) -> Outcome:
        """Train from `state` to the last step or a signal."""
        with interruptible() as interrupted:
            while True:
                try:
                    state = self._updated(state, interrupted)
                    break
                except TrainingDiverged as error:
                    state = self._slowed(error)
            with together("write the run"):
                self.end(state)
            stopped = any_of(interrupted())
        seconds = time.perf_counter() - self.clock.began
        return Outcome(self.run, state.step, stopped, seconds, self.clock.speed, self.metrics)

    def _updated(self, state: State, interrupted: Callable[[], bool]) -> State:
        """Return the state after the last update, or where any process was asked to stop."""
        t, plan = self.settings.training, self.settings.plan()
        plan = replace(plan, optimiser=plan.optimiser.slowed(state.rates))
        for boundary in updates(state, self.x, plan):
            state = boundary.state
            self.metrics = boundary.metrics or self.metrics
            with together("write the run"):
                self.leave(boundary)
            stopped = any_of(interrupted())
            if stopped or state.step % t.checkpoint_every == 0 or state.step == t.steps:
                with together("write the run"):
                    self.keep(state)
            if stopped:
                break
        return state

    def _slowed(self, error: TrainingDiverged) -> State:
        """Return an earlier state, with lower rates, to go on from after a divergence; the second one is the last.

        Of the state before the bad update the gradient would be the same again. The checkpoint before it
        is one that every run of these settings has, however often it was stopped.
        """
        if error.state.rates < 1:
            with together("write the run"):
                self.keep(error.state)
            raise error
        state = self.begin()
        with together("go back to an earlier checkpoint"):
            state = self.back(error, state)
        return shared(state)

    # What is left in the folder: nothing, by processes beside the first.

    def leave(self, boundary: Boundary) -> None:
        """Leave samples and a record, each at its steps."""

    def keep(self, state: State) -> None:
        """Leave a checkpoint and the model."""

    def end(self, state: State) -> None:
        """Leave a checkpoint and the model, if they are not there."""

    def back(self, error: TrainingDiverged, state: State) -> State:
        """Return what to go on from, beginning with `state` if there is nothing else."""
        return state


class WritingSession(Session):
    """That of the first process, or of the only one."""

    def __init__(self, run: RunFolder, *how: Any) -> None:
        """Be about to train, as `Session`, and to write."""
        super().__init__(run, *how)
        self.record = run.record()
        self.own: str | None = self.record.get("run")
        self.reached = run.step()  # a model is never overwritten by an earlier one

    def train(self, state: State) -> Outcome:
        """Train from `state` to the last step or a signal, leaving a model and a checkpoint behind."""
        self.first = state.step
        try:
            return super().train(state)
        except NotWritten as error:
            at = max(checkpoint.steps(self.run.checkpoints), default=0)
            raise NotWritten(
                f"{error} What the run has saved is kept: `kaem train {self.record['what']} --out "
                f"{self.run.path} --resume` goes on from step {at}."
            ) from error

    def leave(self, boundary: Boundary) -> None:
        """Leave samples and a record, each at its steps."""
        state, t = boundary.state, self.settings.training
        if state.step % t.sample_every == 0 and is_image(self.x.shape[1:]):
            images = state.best.sample(jax.random.key(t.seed), 64)
            save_png(self.run.samples / f"{state.step:08d}.png", sample_sheet(images))
        for note in boundary.notes:
            self.watcher.say(note)
        if boundary.metrics is not None:
            self.run.log(self._entry(state))
            self.watcher.log(state.step, self.metrics, self.clock.speed)

    def end(self, state: State) -> None:
        """Leave a checkpoint and the model, if they are not there."""
        if not self.run.model_file.is_file() or self.first == state.step:
            self.keep(state)

    def _entry(self, state: State) -> dict[str, float]:
        """Return the record of a log step."""
        seconds = round(self.clock.seconds(state.step), 3)
        less = {"rates": state.rates} if state.rates < 1 else {}
        return {"step": state.step, "seconds": seconds, **self.metrics, **less}

    def keep(self, state: State) -> None:
        """Leave a checkpoint and the model."""
        self._checkpoint(state)
        if state.step < self.reached:
            return
        # No times or places: the same settings, data and seed give the same bytes.
        made_by = {"settings": self.settings.to_dict(), "data": self.record["data"]}
        made_by |= {"run": self.own} if self.own is not None else {}
        made_by |= {"rates": state.rates} if state.rates < 1 else {}
        model = self.settings.plan().finished(state.best)
        save(model, self.run.model_file, made_by | {"step": state.step})

    def _checkpoint(self, state: State) -> None:
        t = self.settings.training
        how = (t.keep_checkpoints, self.own, t.checkpoint_every)
        checkpoint.write(self.run.checkpoints, state, *how)

    def back(self, error: TrainingDiverged, state: State) -> State:
        """Return the checkpoint before a divergence, which is now where the run stands."""
        folder, every = self.run.checkpoints, self.settings.training.checkpoint_every
        there = checkpoint.steps(folder)
        before = [step for step in there if step < error.step and step % every == 0]
        state, notes = checkpoint.read(folder, state, self.own, before)
        state = replace(state, rates=SLOWED)
        self.watcher.say(
            f"training diverged at step {error.step + 1}, by {error.tensor}: going back to "
            f"step {state.step}, and on with {SLOWED:g} of the learning rates"
        )
        for note in notes:
            self.watcher.say(note)
        # In this order: killed in between, the same divergence leads here again.
        self._checkpoint(state)
        for later in there:
            if later > state.step:
                checkpoint.remove(folder, later)
        self.run.cut_history(state.step)
        self.reached = self.run.step()
        cause = {
            "step": error.step + 1,
            "tensor": error.tensor,
            "from": state.step,
            "rates": SLOWED,
        }
        self.record["diverged"] = cause
        write_atomically(self.run.config_file, json.dumps(self.record, indent=2).encode())
        return state
