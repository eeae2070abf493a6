"""What every target of an export is: what it takes, what it makes of a model, and how that is verified."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..errors import UserError
from ..models import KAEM

Way = TypeVar("Way")


class Target(ABC):
    """One way to ship a model: a base for targets of your own, which an entry of `TARGETS` names.

    What `files` and `verify` take is the model's `subject`; the base returns the model itself.
    """

    summary: ClassVar[str]  # one line, for help
    settings: ClassVar[Mapping[str, Any]] = {}  # what it takes beside a name, with defaults

    def subject(self, model: KAEM, **settings: Any) -> Any:
        """Return what is written of a model whose tables are exact, with all `settings` given."""
        del settings
        return model

    def record(self, model: KAEM, subject: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `export.json` says beside the target, the name and the files."""
        del model, subject, settings
        return {}

    @abstractmethod
    def files(self, subject: Any, name: str = "kaem") -> dict[str, bytes]:
        """Return contents by file name, and write nothing."""

    @abstractmethod
    def verify(self, folder: Path, subject: Any, name: str = "kaem") -> dict[str, Any]:
        """Run what `files` made, written into `folder`, and return what came of it.

        Counts whose names hold `mismatches` or `uniformity_failures` must be zero; `prior_missing` and
        `top_missing` name a package without which nothing could be run.
        """


def way_of(ways: Mapping[type, Way], generator: object) -> Way:
    """Return what a table by class holds for a generator, or say which generators it knows."""
    way = ways.get(type(generator))
    if way is None:
        known = " and ".join(sorted(cls.__name__ for cls in ways))
        raise UserError(
            f"a generator of class {type(generator).__name__} cannot be exported to this target; those of "
            f"classes {known} can, and the prior of any model can alone (`--to lut`)."
        )
    return way
