"""`kaem data list|check|fetch`: where datasets are, whether they are whole, and getting them."""

import argparse
import math
import sys
from typing import Any

from ..errors import UserError, printable
from .progress import say

_LARGE = 10**9  # bytes; of a larger dataset, whole by its checksum, only a sample is decoded
_SAMPLE = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="registered datasets and where they are")
    check = actions.add_parser("check", help="verify checksums, or that a path can be read")
    check.add_argument("names", metavar="NAME", nargs="*", help="names or paths (default: all)")
    about = "read them with this setting of `kaem train`, such as data.size=64; may be repeated"
    check.add_argument("--set", metavar="data.KEY=VALUE", action="append", default=[], help=about)
    fetch = actions.add_parser("fetch", help="download what is missing, checked")
    fetch.add_argument("names", metavar="NAME", nargs="+", help="registered names")


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = {"list": _list, "check": _check, "fetch": _fetch}[options.action](options)
    if not options.json:
        for name, entry in result.items():
            print(f"{printable(name):<14} {entry['status']:<11} {printable(entry['detail'])}")
    return result


def _list(options: argparse.Namespace) -> dict[str, Any]:
    from ..data import DATASETS, find

    result = {}
    for name, dataset in DATASETS.items():
        places = find(name)
        if not dataset.files:
            status, detail = "embedded", dataset.title
        elif all(places.values()):
            folder = next(str(p.parent) for p in places.values() if p)
            status, detail = "present", f"{dataset.title}, in {folder}"
        else:
            how = " says how to get it by hand" if dataset.by_hand else ""
            status, detail = "absent", f"{dataset.title}; `kaem data fetch {name}`{how}"
        result[name] = {
            "status": status,
            "detail": detail,
            "shape": list(dataset.shape),
            "train": dataset.train,
            "licence": dataset.licence,
        }
    return result


def _check(options: argparse.Namespace) -> dict[str, Any]:
    from ..data import DATASETS, find

    result, settings = {}, _settings(options.set)
    for name in options.names or DATASETS:
        try:
            result[name] = {"status": "good", "detail": _checked(name, **settings)}
        except UserError as error:
            absent = not options.names and not any(find(name).values())
            result[name] = {"status": "absent" if absent else "bad", "detail": str(error)}
    return result


def _settings(assignments: list[str]) -> dict[str, Any]:
    """How data are read, in the words of `kaem train`; all of them, where nobody sets a limit."""
    from ..settings import Data, override
    from ..settings.schema import fields, resolved

    values: dict[str, Any] = {"data": {"limit": None}}
    for assignment in assignments:
        values = override(values, assignment)
    known = fields(Data, "data")
    del known["name"], known["memory"]  # what is checked is read whole
    if values.keys() != {"data"} or "name" in values["data"]:
        raise UserError(
            f"`kaem data check` takes --set data.KEY=VALUE with {', '.join(known)}, got "
            f"{' and '.join(assignments)}; what is checked is named without --set."
        )
    return resolved(known, values["data"], "data")


def _checked(name: str, limit: int | None, **settings: Any) -> str:
    from ..data import DATASETS, find, load, verify

    count = None
    if name in DATASETS:
        dataset = DATASETS[name]
        for file, path in find(name).items():
            if path is not None:  # `load` names what is missing
                verify(name, file, path)
        if math.prod(dataset.shape) * dataset.train > _LARGE:
            count = dataset.train
            limit = min(limit or _SAMPLE, _SAMPLE)
    x = load(name, limit=limit, say=say, **settings)
    many = f"{len(x)} examples" if count is None else f"the first {len(x)} of {count} examples"
    return f"{many} of shape {x.shape[1:]}, {x.dtype}, values {x.min()} to {x.max()}"


def _fetch(options: argparse.Namespace) -> dict[str, Any]:
    from ..data import DATASETS, fetch

    for name in options.names:
        if name not in DATASETS:
            raise UserError(f"there is no dataset {name!r}; known: {', '.join(DATASETS)}.")
    result = {}
    for name in options.names:
        paths = fetch(name, progress=False)
        where = str(paths[0].parent) if paths else "inside the package"
        result[name] = {"status": "present", "detail": where}
        print(f"{name} is complete", file=sys.stderr)
    return result
