"""`kaem train WHAT`: a preset, or the path of your own data."""

import argparse
from pathlib import Path
from typing import Any

from . import launching
from .options import FLAG, NUMBER, list_in_help, seed
from .progress import progress, say
from .stopping import Stopped


def configure(parser: Any) -> None:
    list_in_help(parser, "names to --set", _names)
    list_in_help(parser, "presets", _presets)
    add = parser.add_argument
    what = "a preset (quickstart, vae-digits, ...), a path to data, or with --finetune a run"
    add("what", metavar="WHAT", help=what)
    add("--data", metavar="PATH", help="where a preset finds its data")
    add("--config", metavar="FILE", help="settings in TOML, or a run's config.json")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="change one setting")
    other = "begin with the prior of a run, a model file or a prior file, and a new generator"
    add("--prior-from", metavar="RUN", help=other)
    add("--freeze-prior", **FLAG, help="train the generator alone (prior.frozen)")
    further = "go on from the trained run WHAT with this posterior, in a new run"
    add("--finetune", choices=("importance", "ula", "mala"), help=further)
    add("--steps", **NUMBER, help="updates (training.steps)")
    add("--seed", type=seed, metavar="N", help="training.seed")
    add("--out", metavar="RUN", help="the run folder (default runs/WHAT)")
    add("--no-report", **FLAG, help="leave out the figures and the report at the end")
    further = "continue the run in --out; `auto` starts it, or finds it finished, too"
    add(
        "--resume", nargs="?", type=_resume, const=True, default=False, metavar="auto", help=further
    )
    add("--dry-run", **FLAG, help="show shapes, sizes and speed; write nothing")
    several = parser.add_argument_group("several processes, or machines (see the cluster pages)")
    add = several.add_argument
    where = "`auto`: as Slurm, Open MPI or a TPU say; HOST:PORT: that of process 0 (default off)"
    add("--distributed", metavar="auto|off|HOST:PORT", default="off", type=_where, help=where)
    add("--processes", **NUMBER, help="how many there are, with HOST:PORT")
    add("--process-id", **NUMBER, help="which one this is, from 0, with HOST:PORT")
    add("--local-processes", **NUMBER, help="start so many on this machine")


def _resume(text: str) -> str:
    if text != "auto":
        expected = "--resume stands alone or before the word auto, and WHAT comes first"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return text


def _where(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text not in ("auto", "off") and not (
        host and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
    ):
        expected = "--distributed takes auto, off, or HOST:PORT of process 0"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return text


def _names() -> dict[str, str]:
    """What can be chosen with --set."""
    from ..bases import BASES
    from ..models import MODELS
    from ..posterior import RESAMPLERS, SAMPLERS
    from ..priors import REFERENCES
    from ..settings.settings import PARTS

    registries: dict[str, Any] = {"model.kind": MODELS}
    registries |= {f"{part}.kind": registry for part, registry in PARTS.items()}
    registries |= {"prior.basis, generator.basis": BASES, "prior.reference": REFERENCES}
    registries |= {"learner.sampler": SAMPLERS, "learner.resampler": RESAMPLERS}
    return {name: ", ".join(registry) for name, registry in registries.items()}


def _presets() -> dict[str, str]:
    from ..settings import PRESETS

    return {"": ", ".join(PRESETS)}


_CHANGES = ("data", "config", "set", "prior_from", "freeze_prior", "finetune", "steps", "seed")


def run(options: argparse.Namespace) -> dict[str, Any]:
    name = Path(options.what).stem + (f"-{options.finetune}" if options.finetune else "")
    out = Path(options.out or f"runs/{name}")
    changes = {name: getattr(options, name) for name in _CHANGES}
    launching.check(options)
    if options.local_processes is not None and options.process_id is None:
        options.json = False  # the first of them prints
        return {"exit_code": launching.launch(options.local_processes, options.arguments)}
    from .. import runs

    if options.dry_run:
        continued = out if options.resume is True else None
        plan = runs.dry_run(options.what, continued, say=say, **changes)
        if not options.json:
            print(runs.render(plan))
        return plan
    where = (options.distributed, options.processes, options.process_id)
    with launching.joined(*where) as first, progress() as watcher:
        outcome = runs.train(options.what, out, resume=options.resume, watcher=watcher, **changes)
    if not first():
        options.json = False
        return {"interrupted": outcome.interrupted}
    facts = ("step", "interrupted", "seconds", "updates_per_second", "metrics")
    result = {"run": str(out)} | {name: getattr(outcome, name) for name in facts}
    written = []
    if not outcome.interrupted:
        try:
            written = _reported(outcome.run, not options.no_report)
        except Stopped:
            result["interrupted"] = True
    if result["interrupted"]:
        own = f"`kaem train {options.what} --out {out} --resume`"
        again = "the same command" if options.resume == "auto" else own
        say(f"stopped at step {outcome.step}; continue with {again}")
        return result
    result["files"] = [str(path) for path in written]
    if not options.json:
        rate = outcome.updates_per_second
        speed = f" ({rate:.1f} updates/s)" if rate else ""
        time = f" in {outcome.seconds:.0f} s{speed}" if outcome.seconds else ""
        print(f"trained to step {outcome.step}{time}. Look at:")
        for path in written:
            print(f"  {path}")
    return result


def _reported(run: Any, wanted: bool) -> list[Path]:
    """Return what to look at, with the report written if it is not of the model that is there now."""
    page, model = run.report_file, run.model_file
    if not wanted:
        return [model]
    if page.is_file() and page.stat().st_mtime_ns >= model.stat().st_mtime_ns:
        return [model, page]
    from ..interpret.report import report

    return report(run, say=say)
