"""Layers of networks, in forms that are fast on a CPU, with plain twins to test against."""

from ..lazy import submodules
from ..serialisation import know
from .encoder import AbstractEncoder, DenseEncoder, Encoder
from .unet import CLASSES, UNet

ENCODERS: dict[str, type[AbstractEncoder]] = {"convolutional": Encoder, "dense": DenseEncoder}
know(ENCODERS, *CLASSES)

__all__ = ["ENCODERS", "AbstractEncoder", "DenseEncoder", "Encoder", "UNet"]

submodules(__name__)
