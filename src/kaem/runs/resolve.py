"""From what a user asks for to the settings of a run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..data import DATASETS
from ..errors import UserError
from ..loading import read_prior
from ..settings import PRESETS, Settings, merge, override, read_file, read_preset, taken_over
from .folder import RunFolder


def settings_of(
    what: str,
    *,
    data: str | PathLike[str] | None = None,
    config: str | PathLike[str] | None = None,
    set: Sequence[str] | dict[str, dict[str, Any]] = (),
    prior_from: str | PathLike[str] | None = None,
    freeze_prior: bool = False,
    finetune: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
) -> Settings:
    """Return the settings of a preset, or of a model for one's own data, with changes.

    **Arguments:** `what` is the name of a preset, the path of data, or with `finetune` that of a run to
    go on from, with this learner. `data` says where a preset finds its examples; `config` is a file of
    settings, in TOML or a run's `config.json`; `set` holds changes, as `section.name=value` or as a
    dictionary of sections; `prior_from` is a run, model or prior file whose prior is taken over.
    """
    values = _first(what, data, finetune)
    if config is not None:
        values = merge(values, read_file(Path(config)))
    if data is not None:
        values = merge(values, {"data": {"name": str(data)}})
    name = values.get("data", {}).get("name", "")
    if isinstance(name, str) and name and Path(name).exists() and name not in DATASETS:
        # A run is resumed, measured and reported from other folders too.
        values = merge(values, {"data": {"name": str(Path(name).resolve())}})
    if prior_from is not None:
        start = {"start": str(Path(prior_from).resolve())}
        values = merge(values, {"prior": taken_over(read_prior(prior_from)) | start})
    if freeze_prior:
        values = merge(values, {"prior": {"frozen": True}})
    for name, number in (("steps", steps), ("seed", seed)):
        if number is not None:
            values = merge(values, {"training": {name: number}})
    if isinstance(set, dict):
        return Settings.from_dict(merge(values, set))
    for assignment in set:
        values = override(values, assignment)
    return Settings.from_dict(values)


def _first(what: str, data: Any, finetune: str | None) -> dict[str, Any]:
    """Return the settings that everything else changes."""
    if finetune:
        return _finetuned(what, finetune)
    if what not in PRESETS and (Path(what) / "config.json").is_file():
        raise UserError(
            f"{what} is a run, not data: `kaem train {what} --finetune importance --out NEW` goes on "
            "from its model in a new run; `--resume` with the WHAT it was made of continues it."
        )
    if what in PRESETS or not Path(what).exists():
        return read_preset(what)  # which says what is wrong
    if data is not None:
        raise UserError(
            f"got two data sets, {what} and --data {data}; give one of them, or a preset with --data."
        )
    return merge(read_preset("digits-kan"), {"data": {"name": what, "limit": None}})


def _finetuned(what: str, learner: str) -> dict[str, Any]:
    """Return the settings of a run, to go on from its model for a tenth of its updates."""
    if what in PRESETS and not Path(what).exists():
        raise UserError(
            f"--finetune goes on from a trained run, got the preset {what!r}: train it first, then "
            f"`kaem train RUN --finetune {learner} --out NEW`."
        )
    source = RunFolder.open(what)
    values = source.settings().to_dict()
    chains = {"kind": "langevin", "sampler": learner, "persistent": False}
    if "encoder" in values:  # what only its own learner trains
        values = merge(values, {"encoder": {"kind": "none"}})
    return merge(
        values,
        {
            "model": {"start": str(source.path.resolve())},
            "prior": {"start": None},
            "learner": {"kind": "importance"} if learner == "importance" else chains,
            "training": {"steps": max(100, values["training"]["steps"] // 10)},
        },
    )


def resumed_settings(
    run: RunFolder,
    what: str,
    *,
    data: str | PathLike[str] | None = None,
    steps: int | None = None,
    **others: Any,
) -> Settings:
    """Return the settings of a run to continue; only its length and the data's place may change."""
    _check_what(run, what)
    if any(value is not None and value is not False and value != [] for value in others.values()):
        raise UserError(
            "--resume continues a run with its own settings; leave out --set, --config, --seed, "
            "--prior-from, --freeze-prior and --finetune (--steps and --data may be given)."
        )
    settings = run.settings()
    if steps is not None:
        try:
            settings = replace(settings, training=replace(settings.training, steps=steps))
        except ValueError as error:
            raise UserError(str(error)) from error
    if data is not None:
        place = str(Path(data).resolve()) if Path(data).exists() else str(data)
        settings = replace(settings, data=replace(settings.data, name=place))
    return settings


def repeated_settings(run: RunFolder, what: str, **changes: Any) -> Settings:
    """Return the settings of a run that is asked for again; only its length may be another, and not less.

    And where its data are while it is trained, of which nothing that it learns depends.
    """
    _check_what(run, what)
    asked, own = settings_of(what, **changes), run.settings()
    own = replace(own, data=replace(own.data, memory=asked.data.memory))
    theirs, ours = (_flat(settings) for settings in (asked, own))
    if asked.training.steps > own.training.steps:
        own = replace(own, training=asked.training)
        ours["training.steps"] = theirs["training.steps"]
    absent = "nothing"
    differences = [
        f"{name}: run has {ours.get(name, absent)}, command says {theirs.get(name, absent)}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    if differences:
        raise UserError(
            f"{run.path} is a run with other settings than these ("
            + "; ".join(differences)
            + "). Leave out what differs (or continue the run as it is with --resume), or choose another "
            "folder with --out."
        )
    return own


def _flat(settings: Settings) -> dict[str, str]:
    """Return every setting as text, by section and name."""
    sections = settings.to_dict().items()
    return {f"{s}.{name}": json.dumps(value) for s, vs in sections for name, value in vs.items()}


def _check_what(run: RunFolder, what: str) -> None:
    recorded = run.record()["what"]
    if recorded != what:
        raise UserError(
            f"{run.path} is a run of {recorded!r}, not of {what!r}: continue it with `kaem train "
            f"{recorded} --out {run.path} --resume`, or choose another folder with --out."
        )
