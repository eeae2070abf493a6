"""What lies between what a generator draws and the data: the lens that a likelihood looks through."""

from ..lazy import submodules
from ..serialisation import know
from .lens import Lens

LENSES: dict[str, type[Lens]] = {"spectral": Lens}
know(LENSES)

__all__ = ["LENSES", "Lens"]

submodules(__name__)
