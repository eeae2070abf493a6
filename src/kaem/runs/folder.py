"""A run folder: what training writes, resumes and never overwrites."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..data import load as load_data
from ..data.arrays import SPLIT_KEYS, Split
from ..errors import UNREADABLE, UserError
from ..files import not_written, parse_json, read_json, read_text, sha256, write_atomically
from ..loading import load, read_config
from ..settings import Settings

Report = Callable[[str], None]

_RECORDED = {"what": str, "settings": dict, "data": dict, "created": str, "versions": dict}
_MAX_HISTORY, _MAX_LINE = 2**28, 2**16  # bytes of all logged steps, and characters of one


class RunFolder:
    """What is in a run folder, and where."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name a folder, which need not be there yet; `open` wants one that is."""
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.safetensors"
        self.start_file = self.path / "start.safetensors"  # where training began with other files
        self.history_file = self.path / "history.jsonl"
        self.metrics_file = self.path / "metrics.json"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples"
        self.figures = self.path / "figures"
        self.report_file = self.path / "report.html"
        self.lock_file = self.path / ".lock"  # while a process writes here

    @property
    def own(self) -> set[Path]:
        """Return the files and folders that training and evaluation write, and nothing else may."""
        files = {self.config_file, self.model_file, self.start_file, self.history_file}
        return files | {self.metrics_file, self.checkpoints, self.samples}

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Return an existing run, or say what is missing."""
        run = cls(path)
        if not run.config_file.is_file():
            file = run.path.is_file()
            what = "a file, not a run folder" if file else "not a run folder (no config.json)"
            raise UserError(
                f"{run.path} is {what}. Runs are made by `kaem train`; give the folder."
            )
        return run

    def record(self) -> dict[str, Any]:
        """Return what `config.json` holds."""
        found = read_json(self.config_file)
        for name, kind in _RECORDED.items():
            if not isinstance(found.get(name), kind):
                raise UserError(
                    f"{self.config_file} has no {name!r}, which every run records. Restore the file, or "
                    "start a new run."
                )
        shape = found["data"].get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            raise UserError(
                f"{self.config_file} has no shape of its data, which every run records. Restore the file, "
                "or start a new run."
            )
        return found

    def settings(self) -> Settings:
        """Return what the run was made with, in today's names."""
        return Settings.from_dict(self.record()["settings"], recorded=True)

    def model(self) -> Any:
        """Return the model of this run, ready to sample."""
        self.check_model()
        return load(self.model_file)

    def check_model(self) -> None:
        """Raise if the model says that it is of another run; older ones do not say."""
        try:
            of = read_config(self.model_file).get("run")
        except UserError:  # absent or damaged, which whoever reads it will say
            return
        if of is not None and of != self.record().get("run"):
            raise UserError(
                f"{self.model_file} is of another run, with other settings or data: move it away, and `kaem "
                f"train {self.record()['what']} --out {self.path} --resume` writes this run's from its "
                "newest checkpoint."
            )

    def data(
        self,
        source: str | None = None,
        split: Split = "train",
        limit: int | None = None,
        say: Report = lambda _: None,
        on_disk: bool = False,
    ) -> Any:
        """Return what a trained model is compared with: its own data or `source`, read in the same way.

        All of it is in memory, or with `on_disk` no more than in training.
        """
        d = self.settings().data
        name, key = (d.name, d.key) if source is None else (source, None)
        if split == "test" and key in SPLIT_KEYS["train"]:
            key = None  # of the same file, what goes by the other split's name
        least = limit if split == "test" or d.limit is None else min(limit or d.limit, d.limit)
        options: Any = {"size": d.size, "channels": d.channels, "limit": least, "mixed": d.mixed}
        memory = d.memory_bytes if on_disk else None
        return load_data(name, key, split, **options, say=say, memory=memory)

    def step(self) -> int:
        """Return the step of the model in this folder; 0 if there is none."""
        if not self.model_file.is_file():
            return 0
        try:
            return int(read_config(self.model_file)["step"])
        except (UserError, KeyError, TypeError, ValueError, OverflowError):  # damaged, or older
            return int(max((record["step"] for record in self.history()), default=0))

    def history(self) -> list[dict[str, Any]]:
        """Return every logged step; a last line cut off by a kill is ignored."""
        if not self.history_file.is_file():
            return []
        records = []
        try:
            lines = read_text(self.history_file, _MAX_HISTORY, "replace").splitlines()
        except UNREADABLE as error:
            raise UserError(
                f"{self.history_file} cannot be read ({error}); restore the file, or move it away."
            ) from error
        for number, line in enumerate(lines, 1):
            try:
                if len(line) > _MAX_LINE:
                    raise ValueError(f"it has {len(line):,} characters")
                record = parse_json(line)
                numbers = all(isinstance(value, int | float) for value in record.values())
                if type(record.get("step")) is not int or not numbers:
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

    def log(self, record: dict[str, float]) -> None:
        """Add a logged step to the history."""
        try:
            with open(self.history_file, "a", encoding="utf8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise not_written(self.history_file, error) from error

    def cut_history(self, step: int) -> None:
        """Remove what was logged after `step`, and a line that was cut off by a kill."""
        kept = [json.dumps(record) + "\n" for record in self.history() if record["step"] <= step]
        write_atomically(self.history_file, "".join(kept).encode())

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the `details` of `metrics.json`: everything that was measured, by name."""
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

    def current_metrics(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Return what was measured of the model that is here now, and a note on what was of another."""
        details = self.metrics()
        now = sha256(self.model_file) if details else ""
        old = [name for name, entry in details.items() if entry.get("model_sha256", now) != now]
        note = (
            f"{', '.join(old)} of {self.path} were measured of another model than it has now, and are "
            f"left out: `kaem evaluate {self.path}` measures this one"
        )
        return {n: e for n, e in details.items() if n not in old}, note if old else ""

    def tidy(self) -> None:
        """Remove what kills left of files that training writes; others may be writing theirs."""
        for file in (self.config_file, self.model_file, self.start_file, self.history_file):
            for left in self.path.glob(f".{file.name}.*.tmp"):
                left.unlink(missing_ok=True)
        for left in self.samples.glob(".*.png.*.tmp"):
            left.unlink(missing_ok=True)

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


def identity(settings: dict[str, Any], data: dict[str, Any]) -> str:
    """Return a digest of what a run is: its data, and its settings but for those that resuming may change."""
    free = {"training": ("steps",), "data": ("name", "memory")}
    fixed = {
        section: {
            name: value for name, value in values.items() if name not in free.get(section, ())
        }
        for section, values in settings.items()
    }
    return hashlib.sha256(json.dumps([fixed, data], sort_keys=True).encode()).hexdigest()


def checked_output(path: str | os.PathLike[str], *suffixes: str, beside: str | None = None) -> Path:
    """Return where a file is to go, if its name says what it will be and nothing else would be lost.

    That is no file of a run's own, and no file that has the suffix `beside`, which is written along
    with it, unless both are there from an earlier time.
    """
    place = Path(path)
    if place.suffix not in suffixes:
        more = f", beside which a {beside} is written" if beside else ""
        raise UserError(f"-o takes a {' or '.join(suffixes)} file{more}, got {place}.")
    places = [place, *([place.with_suffix(beside)] if beside else [])]
    for one in places:
        if one.is_dir():
            raise UserError(f"{one} is a folder; choose another file with -o.")
        for folder in one.absolute().parents[:2]:
            run = RunFolder(folder)
            if run.config_file.is_file() and {one.absolute(), one.absolute().parent} & run.own:
                raise UserError(
                    f"{one} belongs to the run {run.path}, and is not written over; choose another file "
                    "with -o."
                )
    if places[-1].exists() and not place.exists():
        raise UserError(
            f"{places[-1]} would be written beside {place}, and is there already; choose another file "
            "with -o."
        )
    return place
