"""`kaem train WHAT`: a preset, or the path of your own data."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .options import seed
from .progress import progress, say


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a preset (quickstart, mnist, ...), a path to data, or with --finetune a run",
    )
    parser.add_argument("--data", metavar="PATH", help="where a preset finds its data")
    parser.add_argument("--config", metavar="FILE", help="settings in TOML, or a run's config.json")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change one setting"
    )
    parser.add_argument(
        "--prior-from",
        metavar="RUN",
        help="begin with the prior of a run, a model file or a prior file, and a new generator",
    )
    parser.add_argument(
        "--freeze-prior", action="store_true", help="train the generator alone (prior.frozen)"
    )
    parser.add_argument(
        "--finetune",
        choices=("importance", "ula", "mala"),
        help="go on from the trained run WHAT with this posterior, in a new run",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="updates (training.steps)")
    parser.add_argument("--seed", type=seed, metavar="N", help="training.seed")
    parser.add_argument("--out", metavar="RUN", help="the run folder (default runs/WHAT)")
    parser.add_argument(
        "--no-report", action="store_true", help="leave out the figures and the report at the end"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument(
        "--dry-run", action="store_true", help="show shapes, sizes and speed; write nothing"
    )


def resolve(options: argparse.Namespace) -> Any:
    """The settings that the options ask for."""
    from ..data import DATASETS
    from ..training.config import Config, merge, override, preset_names, read_file, read_preset

    what = options.what
    if options.finetune:
        values = _finetuned(what, options.finetune)
    elif what in preset_names():
        values = read_preset(what)
    elif (Path(what) / "config.json").is_file():
        raise UserError(
            f"{what} is a run, not data: `kaem train {what} --finetune importance --out NEW` goes on "
            "from its model in a new run; `--resume` with the WHAT it was made of continues it."
        )
    elif Path(what).exists():
        if options.data:
            raise UserError(
                f"got two data sets, {what} and --data {options.data}; give one of them, or a preset "
                "with --data."
            )
        values = merge(read_preset("quickstart"), {"data": {"name": what, "limit": None}})
    else:
        values = read_preset(what)  # which says what is wrong
    if options.config:
        given = read_file(Path(options.config))
        values = merge(values, given.get("settings", given))
    if options.data:
        values = merge(values, {"data": {"name": options.data}})
    name = values.get("data", {}).get("name", "")
    if name and Path(name).exists() and name not in DATASETS:
        # A run is resumed, measured and reported from other folders too.
        values = merge(values, {"data": {"name": str(Path(name).resolve())}})
    if options.prior_from:
        values = merge(values, {"prior": _prior_from(options.prior_from)})
    if options.freeze_prior:
        values = merge(values, {"prior": {"frozen": True}})
    for name in ("steps", "seed"):
        if getattr(options, name) is not None:
            values = merge(values, {"training": {name: getattr(options, name)}})
    for assignment in options.set:
        values = override(values, assignment)
    return Config.from_dict(values)


def _prior_from(source: str) -> dict[str, Any]:
    """The settings of a prior that is taken over."""
    from ..serialisation import read_prior
    from ..training.build import prior_settings

    return prior_settings(read_prior(source)) | {"start": str(Path(source).resolve())}


def _finetuned(what: str, posterior: str) -> dict[str, Any]:
    """The settings of a run, to go on from its model for a tenth of its updates."""
    from ..training.config import merge, preset_names
    from ..training.run import Run

    if what in preset_names() and not Path(what).exists():
        raise UserError(
            f"--finetune goes on from a trained run, got the preset {what!r}: train it first, then "
            f"`kaem train RUN --finetune {posterior} --out NEW`."
        )
    source = Run.open(what)
    values = source.config().to_dict()
    return merge(
        values,
        {
            "model": {"start": str(source.path.resolve())},
            "prior": {"start": None},
            "posterior": {"kind": posterior, "criterion": "likelihood", "persistent": False},
            "training": {"steps": max(100, values["training"]["steps"] // 10)},
        },
    )


def _resumed(options: argparse.Namespace, out: Path) -> Any:
    """The settings of the run itself; only its length and the data's place may change."""
    from dataclasses import replace

    from ..training.run import Run

    run = Run.open(out)
    recorded = run.record().get("what")
    if recorded != options.what:
        raise UserError(
            f"{out} is a run of {recorded!r}, not of {options.what!r}: continue it with `kaem train "
            f"{recorded} --out {out} --resume`, or choose another folder with --out."
        )
    changes = (options.set, options.config, options.prior_from, options.freeze_prior)
    if any(changes) or options.finetune or options.seed is not None:
        raise UserError(
            "--resume continues a run with its own settings; leave out --set, --config, --seed, "
            "--prior-from, --freeze-prior and --finetune (--steps and --data may be given)."
        )
    config = run.config()
    if options.steps is not None:
        config = replace(config, training=replace(config.training, steps=options.steps))
    if options.data:
        place = Path(options.data)
        name = str(place.resolve()) if place.exists() else options.data
        config = replace(config, data=replace(config.data, name=name))
    return config


def run(options: argparse.Namespace) -> dict[str, Any]:
    name = Path(options.what).stem + (f"-{options.finetune}" if options.finetune else "")
    out = Path(options.out or f"runs/{name}")
    config = _resumed(options, out) if options.resume else resolve(options)

    from ..training import run as runs

    if not options.resume and not options.dry_run:
        runs.refuse_existing(out)
    x = runs.training_data(config, say)
    if options.dry_run:
        from ..training.dry_run import dry_run, render

        plan = dry_run(config, x)
        if not options.json:
            print(render(plan))
        return plan
    if options.resume:
        this = runs.Run.open(out)
    else:
        from ..training.build import build_model, build_posterior

        build_model(config, x.shape[1:])  # settings that make no model leave no folder behind
        build_posterior(config)
        this = runs.start(out, options.what, config, x)

    with progress(config.training.steps) as reporter:
        if not options.resume:
            reporter.say(
                f"training {options.what} on {len(x)} examples of shape {x.shape[1:]} into {out}; "
                "compiling first"
            )
        outcome = runs.train(
            this, config, x, resuming=options.resume, on_log=reporter.log, say=reporter.say
        )
    result = {
        "run": str(out),
        "step": outcome.step,
        "interrupted": outcome.interrupted,
        "seconds": outcome.seconds,
        "updates_per_second": outcome.updates_per_second,
        "metrics": outcome.metrics,
    }
    if outcome.interrupted:
        print(
            f"stopped at step {outcome.step}; continue with "
            f"`kaem train {options.what} --out {out} --resume`",
            file=sys.stderr,
        )
        return result
    written = [this.model_file]
    if not options.no_report:
        from ..interpret.report import finish

        written = finish(this, say)
    result["files"] = [str(path) for path in written]
    if not options.json:
        rate = outcome.updates_per_second
        speed = f" ({rate:.1f} updates/s)" if rate else ""
        print(f"trained to step {outcome.step} in {outcome.seconds:.0f} s{speed}. Look at:")
        for path in written:
            print(f"  {path}")
    return result
