"""`kaem data list|check|fetch`: where datasets are, whether they are whole, and getting them."""

import argparse
import sys
from typing import Any

from ..errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="registered datasets and where they are")
    check = actions.add_parser("check", help="verify checksums, or that a path can be read")
    check.add_argument("names", metavar="NAME", nargs="*", help="names or paths (default: all)")
    fetch = actions.add_parser("fetch", help="download what is missing, checked")
    fetch.add_argument("names", metavar="NAME", nargs="+", help="registered names")


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = {"list": _list, "check": _check, "fetch": _fetch}[options.action](options)
    if not options.json:
        for name, entry in result.items():
            print(f"{name:<15}{entry['status']:<12}{entry['detail']}")
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
            status, detail = "absent", f"{dataset.title}; `kaem data fetch {name}`"
        result[name] = {
            "status": status,
            "detail": detail,
            "shape": list(dataset.shape),
            "train": dataset.train,
            "licence": dataset.licence,
        }
    return result


def _check(options: argparse.Namespace) -> dict[str, Any]:
    from ..data import DATASETS

    result = {}
    for name in options.names or DATASETS:
        try:
            result[name] = {"status": "good", "detail": _checked(name)}
        except UserError as error:
            absent = not options.names and name in DATASETS
            result[name] = {"status": "absent" if absent else "bad", "detail": str(error)}
    return result


def _checked(name: str) -> str:
    from ..data import DATASETS, find, load, verify

    if name in DATASETS:
        for file, path in find(name).items():
            if path is not None:  # `load` names what is missing
                verify(name, file, path)
    x = load(name)
    return f"{len(x)} examples of shape {x.shape[1:]}, {x.dtype}, values {x.min()} to {x.max()}"


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
