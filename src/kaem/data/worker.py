"""The program that decodes examples for another process; see `workers`."""

import json
import math
import os
import signal
import sys
import warnings
from typing import Any

import numpy as np

from ..errors import UserError
from .images import Images
from .parquet import Table
from .resizing import Arrays

KINDS: dict[str, Any] = {"images": Images, "arrays": Arrays, "table": Table}


def main() -> None:
    """Read a recipe and then tasks, a line each; answer every task with a report."""
    from filelock import FileLock

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this ends it
    warnings.simplefilter("ignore")
    # What a library prints must not get among the reports.
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    recipe = json.loads(sys.stdin.readline())
    shape, dtype, offset = recipe["shape"], np.dtype(recipe["dtype"]), recipe["offset"]
    size = math.prod(shape[1:]) * dtype.itemsize
    alone = FileLock(f"{recipe['target']}.alone")
    with (
        open(recipe["target"], "rb+", buffering=0) as target,
        KINDS[recipe["kind"]].made(recipe, alone) as source,
    ):
        for line in sys.stdin:
            count = 0

            def put(start: int, some: np.ndarray) -> None:
                nonlocal count
                target.seek(offset + start * size)
                content = np.ascontiguousarray(some, dtype).reshape(-1).view(np.uint8).data
                while content:
                    content = content[target.write(content) :]
                count += len(some)

            try:
                report = {"report": source.read(json.loads(line), put), "count": count}
            except UserError as error:
                report = {"error": str(error)}
            except Exception as error:  # which nobody would see
                report = {"error": f"data cannot be decoded: {type(error).__name__}: {error}."}
            answers.write(json.dumps(report) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
