"""What targets in integers share: their settings, the quantised model, and what is said of its quality."""

from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar

from ...errors import UserError
from ...models import KAEM
from ..target import Target
from . import quality
from .quantised import Quantised, in_integers

_TAKEN = ("entries", "bits", "interpolate", "addressing", "inner_bits")
SETTINGS = {name: signature(in_integers).parameters[name].default for name in _TAKEN}


class IntegerTarget(Target):
    """A target whose subject is a `Quantised`: with `generator` the whole model, else its prior."""

    settings: ClassVar[Mapping[str, Any]] = SETTINGS
    generator: ClassVar[bool] = True

    def subject(self, model: KAEM, **settings: Any) -> Quantised:
        try:
            return in_integers(model, **{"generator": self.generator} | settings)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(str(error)) from error

    def record(self, model: KAEM, subject: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: settings[name] for name in SETTINGS}
        return {"settings": said, "quality": quality.quality(model, subject)}
