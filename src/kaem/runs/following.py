"""What the first process tells the others before they train together: what, or that it cannot."""

import json
from typing import Any, Self

from ..errors import UserError
from ..processes import told


class Others:
    """The processes beside the first one, which wait to hear from it; there may be none."""

    def __init__(self) -> None:
        self._waiting = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        if self._waiting:
            self._tell({"failed": True})

    def introduce(self, what: dict[str, Any], start: bytes) -> None:
        """Tell what is trained, and the content of the file that training begins with."""
        self._tell(what)
        told(start)

    def dismiss(self, step: int) -> None:
        """Tell that all steps are done."""
        self._tell({"finished": step})

    def _tell(self, what: dict[str, Any]) -> None:
        self._waiting = False
        told(json.dumps(what).encode())


def introduced() -> tuple[dict[str, Any], bytes]:
    """Return what the first process tells, and the content of the file that training begins with."""
    what = json.loads(told())
    if "failed" in what:
        raise UserError("the first process could not begin; its own message says why.")
    return what, b"" if "finished" in what else told()
