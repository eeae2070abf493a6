"""Settings: sections derived from constructors and registries, presets, and what they describe."""

from ..lazy import submodules
from .settings import Data, Settings, Training, section_of, taken_over
from .values import PRESETS, merge, override, read_file, read_preset

__all__ = [
    "PRESETS",
    "Data",
    "Settings",
    "Training",
    "merge",
    "override",
    "read_file",
    "read_preset",
    "section_of",
    "taken_over",
]

submodules(__name__)
