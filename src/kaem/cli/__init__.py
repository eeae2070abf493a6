"""The command line: `kaem VERB ... [--json]`.

Exit codes: 0 done, 2 a user's mistake (one paragraph on standard error, no traceback), 75 stopped in
good order, to be run again, 130 stopped at once. One module per verb, imported when used; parsing
imports nothing heavy.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from ..cache import keep_compiled_programs
from ..errors import UserError, printable
from .options import cores
from .stopping import AGAIN, AT_ONCE, Stopped, stoppable


class Verb(NamedTuple):
    """What `kaem --help` says of a verb, and the module that has its `configure(parser)` and `run(options)`."""

    summary: str
    module: str


_SUMMARIES = {
    "train": "train a preset, or a model of your own data",
    "sample": "draw samples from a trained run",
    "evaluate": "measure a run or two sets of images: FID, KID, log p(x), diagnostics",
    "plot": "draw figures: densities, traversals, interpolations, posteriors, training",
    "symbolic": "closed forms of the learned densities, and what using them would cost",
    "report": "write one self-contained HTML page about a run",
    "align": "refit the prior to where the posterior is, and fold the map into the generator",
    "export": "ship a model, verified: tables, C, HLS, Verilog, ONNX",
    "compare": "put runs side by side: samples, metrics, costs",
    "info": "versions and devices, or what a run is",
    "data": "datasets: list, check, fetch",
    "bench": "benchmarks: exactness, speed of training and sampling",
}
VERBS = {name: Verb(summary, f"kaem.cli.{name}") for name, summary in _SUMMARIES.items()}


class Parser(argparse.ArgumentParser):
    """argparse with messages that begin in our words, exit code 2, and help that is found when asked for.

    Verbs append functions to `more`, of what to add to their help: registries are imported only then.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.more: list[Callable[[], str]] = []

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See `{self.prog} --help`.")

    def format_help(self) -> str:
        return "\n".join([super().format_help(), *(f"{more()}\n" for more in self.more)])


def parser() -> argparse.ArgumentParser:
    from .. import __version__

    about = "Kolmogorov-Arnold Energy Models: train, sample, look inside, ship."
    top = Parser(prog="kaem", description=about)
    top.add_argument("--version", action="version", version=f"kaem {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (summary, module) in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        importlib.import_module(module).configure(sub)
        for leaf in _leaves(sub):
            leaf.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def _leaves(sub: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    nested = [a for a in sub._actions if isinstance(a, argparse._SubParsersAction)]
    return [p for action in nested for p in action.choices.values()] or [sub]


def _exit_code(result: dict[str, Any]) -> int:
    """75 for an interrupted run, 2 where `data check` found something bad, or that of other processes."""
    if "exit_code" in result:
        return int(result["exit_code"])
    if result.get("interrupted"):
        return AGAIN
    entries = (value for value in result.values() if isinstance(value, dict))
    return 2 if any(entry.get("status") == "bad" for entry in entries) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with stoppable():
            return _run(arguments)
    except Stopped:
        _tell("stopped; run it again to go on")
        return AGAIN
    except KeyboardInterrupt:
        _tell("stopped at once")
        return AT_ONCE


def _tell(message: str) -> None:
    """Write to standard error, if anybody still listens there."""
    try:
        print(f"kaem: {printable(message)}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run(arguments: list[str]) -> int:
    result: dict[str, Any] | None = None
    try:
        options = parser().parse_args(arguments)
        for name, value in vars(options).items():
            if value == "":
                raise UserError(
                    f"{name} is empty, as an unset variable of the shell is; give a value."
                )
        options.arguments = arguments
        # One device for each core (see kaem.parallel), decided before JAX is imported.
        if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores()))
        keep_compiled_programs()
        module = importlib.import_module(VERBS[options.verb].module)
        result = module.run(options)
        if options.json and result is not None:
            print(json.dumps(result, indent=2, allow_nan=True), flush=True)
        return _exit_code(result or {})
    except UserError as error:
        message = str(error)
    except MemoryError:
        message = "out of memory; ask for less at once, or use a machine with more."
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # how XLA says that there is no memory
            raise
        message = "out of memory; ask for less at once, or use a machine with more."
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _exit_code(result or {})
    except OSError as error:
        # A full disk, a missing permission: theirs to fix. Files are written atomically.
        place = f" ({error.filename})" if error.filename else ""
        message = f"{error.strerror or error}{place}; earlier files are unchanged."
    _tell(message)
    return 2
