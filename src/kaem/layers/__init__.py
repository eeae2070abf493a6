"""Layers of networks, in forms that are fast on a CPU, with plain twins to test against."""

from ..lazy import submodules
from ..serialisation import know
from .encoder import Encoder
from .unet import CLASSES, UNet

ENCODERS: dict[str, type] = {"convolutional": Encoder}
know(ENCODERS, *CLASSES)

__all__ = ["ENCODERS", "Encoder", "UNet"]

submodules(__name__)
